// `oa inspect`: what is in a checkpoint, a safetensors, an .npy or an .npz file.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/oa/commands.h"
#include "oa/core/utf8.h"
#include "oa/ml/checkpoint/tensor_file.h"

namespace oa::command {
namespace {

using ml::Oam;
using ml::TensorFile;
using ml::TensorInfo;
using nlohmann::ordered_json;

u64 values_in(const TensorFile& file) {
  u64 n = 0;
  for (const TensorInfo& t : file.tensors()) n += *ml::checked_elements(t.shape);
  return n;
}

void print_oam(const Oam& oam) {
  const auto& c = oam.config;
  fmt::print("version {}, architecture {}, d_model {}, layers {}, vocabulary {}\n", oam.version,
             printable(c.architecture), c.d_model, c.n_layers, c.d_vocab);
  const auto& p = oam.progress;
  fmt::print("step {}, {} bytes seen, {} environment steps, learning rate {}, best {} {} ({})\n",
             p.step, p.bytes_seen, p.environment_steps, p.learning_rate, printable(p.metric_name),
             p.best_metric, p.lower_is_better ? "lower is better" : "higher is better");
  if (const auto& o = oam.optimizer)
    fmt::print(
        "optimizer {}, step {}, learning rate {}, betas {} and {}, epsilon {}, weight decay {}, "
        "{} bytes of moments\n",
        o->kind, o->step, o->learning_rate, o->beta1, o->beta2, o->epsilon, o->weight_decay,
        o->first.size() + o->second.size() + o->muon.size());
}

void print_text(const std::string& path, const TensorFile& file) {
  fmt::print("{}: {}, {} bytes\n", path, token(file.kind()), file.file_bytes());
  if (file.oam()) print_oam(*file.oam());
  for (const auto& [key, text] : file.metadata())
    fmt::print("metadata {}: {}\n", printable(key), printable(text, 200));
  size_t name = 4, shape = 5;
  for (const TensorInfo& t : file.tensors()) {
    name = std::max(name, printable(t.name).size());
    shape = std::max(shape, to_string(t.shape).size());
  }
  if (!file.tensors().empty())
    fmt::print("\n{:<{}}  {:<7}  {:<{}}  {:>12}  {}\n", "name", name, "dtype", "shape", shape,
               "bytes", "storage");
  for (const TensorInfo& t : file.tensors())
    fmt::print("{:<{}}  {:<7}  {:<{}}  {:>12}  {}{}\n", printable(t.name), name, token(t.dtype),
               to_string(t.shape), shape, t.stored_bytes, t.storage, t.state ? ", state" : "");
  fmt::print("\n{} tensors, {} values\n", file.tensors().size(), values_in(file));
}

ordered_json json_of(const Oam& oam) {
  const auto& c = oam.config;
  const auto& p = oam.progress;
  ordered_json out = {{"version", oam.version},
                      {"config",
                       {{"architecture", c.architecture},
                        {"version", c.version},
                        {"d_model", c.d_model},
                        {"n_layers", c.n_layers},
                        {"d_vocab", c.d_vocab},
                        {"extra_bytes", c.extra.size()}}},
                      {"optimizer", nullptr},
                      {"progress",
                       {{"phase", p.phase},
                        {"step", p.step},
                        {"bytes_seen", p.bytes_seen},
                        {"environment_steps", p.environment_steps},
                        {"learning_rate", p.learning_rate},
                        {"best_metric", p.best_metric},
                        {"lower_is_better", p.lower_is_better},
                        {"metric_name", p.metric_name}}}};
  if (const auto& o = oam.optimizer)
    out["optimizer"] = {{"kind", o->kind},
                        {"step", o->step},
                        {"learning_rate", o->learning_rate},
                        {"beta1", o->beta1},
                        {"beta2", o->beta2},
                        {"epsilon", o->epsilon},
                        {"weight_decay", o->weight_decay},
                        {"moment_bytes", o->first.size() + o->second.size() + o->muon.size()}};
  return out;
}

void print_json(const std::string& path, const TensorFile& file) {
  ordered_json tensors = ordered_json::array();
  for (const TensorInfo& t : file.tensors())
    tensors.push_back({{"name", t.name},
                       {"dtype", token(t.dtype)},
                       {"shape", std::vector<i64>(t.shape.begin(), t.shape.end())},
                       {"bytes", t.stored_bytes},
                       {"storage", t.storage},
                       {"state", t.state}});
  ordered_json metadata = ordered_json::object();
  for (const auto& [key, text] : file.metadata()) metadata[key] = text;
  ordered_json all = {{"path", path},
                      {"kind", token(file.kind())},
                      {"bytes", file.file_bytes()},
                      {"tensors", tensors},
                      {"metadata", metadata}};
  if (file.oam()) all["oam"] = json_of(*file.oam());
  // A path need not be UTF-8.
  fmt::print("{}\n", all.dump(2, ' ', false, ordered_json::error_handler_t::replace));
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* inspect =
      app.add_subcommand("inspect", "Tensors and training state in a checkpoint or tensor file");
  struct Options {
    std::string path;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  inspect->add_option("FILE", options->path, ".oam, safetensors, .npy or .npz")->required();
  inspect->add_flag("--json", options->json, "Print JSON");
  inspect->callback([&action, options] {
    action = [options] {
      const TensorFile file = TensorFile::open(options->path);
      options->json ? print_json(options->path, file) : print_text(options->path, file);
    };
  });
}

}  // namespace oa::command
