// `oa convert`: the tensors of one file as another kind of file.
#include <fmt/format.h>

#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "apps/oa/commands.h"
#include "oa/core/error.h"
#include "oa/ml/checkpoint/npz.h"
#include "oa/ml/checkpoint/tensor_file.h"

namespace oa::command {
namespace {

using ml::Encoding;
using ml::FileDType;
using ml::FileKind;
using ml::Oam;
using ml::TensorFile;
using ml::TensorView;

struct Options {
  std::string in, out, quantize;
  bool with_state = false, compress = false;
};

// What the views of a list point into.
struct Values {
  std::vector<ml::TensorBytes> loaded;
  std::list<std::vector<u8>> widened;
  std::vector<TensorView> views;
};

Values load(const TensorFile& file, bool with_state) {
  Values values;
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const ml::TensorInfo& t = file.tensors()[i];
    if (t.state && !with_state) continue;
    values.loaded.push_back(file.values(i));
    values.views.push_back({t.name, t.dtype, t.shape, values.loaded.back().bytes()});
  }
  return values;
}

// NumPy has no BF16; F32 holds the same values.
void widen_bf16(Values& values) {
  for (TensorView& t : values.views) {
    if (t.dtype != FileDType::BF16) continue;
    std::vector<u8>& wide = values.widened.emplace_back(2 * t.bytes.size());
    for (size_t i = 0; i < t.bytes.size() / 2; ++i) {
      u16 half;
      std::memcpy(&half, t.bytes.data() + 2 * i, 2);
      const f32 value = bf16_to_f32(half);
      std::memcpy(wide.data() + 4 * i, &value, 4);
    }
    t.dtype = FileDType::F32;
    t.bytes = wide;
  }
}

void convert(const Options& o) {
  constexpr std::string_view op = "convert";
  const std::optional<FileKind> kind = ml::kind_of(o.out);
  if (!kind)
    invalid(op, "unknown kind of file, got '{}', expected .oam, .safetensors, .npy or .npz", o.out);
  if (!o.quantize.empty() && kind != FileKind::Oam)
    invalid(op, "only .oam files hold quantised weights, got '{}'", o.out);
  if (o.compress && kind != FileKind::Npz)
    invalid(op, "only .npz files are compressed, got '{}'", o.out);

  const TensorFile file = TensorFile::open(o.in);
  if (kind == FileKind::Oam) {
    // A checkpoint stays one: configuration, state and progress go along, the optimizer, too.
    Oam content;
    Values values;
    if (file.oam()) {
      content = *file.oam();
    } else {
      values = load(file, true);
      content.weights = values.views;
    }
    if (!o.quantize.empty())
      content = quantized(content, o.quantize == "q4" ? Encoding::Q4 : Encoding::Q8);
    return write_oam(o.out, content);
  }
  Values values = load(file, o.with_state);
  if (kind == FileKind::Npy || kind == FileKind::Npz) widen_bf16(values);
  if (kind == FileKind::Npz && o.compress)
    return write_npz(o.out, values.views, ml::Compression::Deflate);
  write_tensors(o.out, values.views,
                kind == FileKind::Safetensors ? file.metadata() : ml::Metadata());
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand(
      "convert",
      "Write the tensors of a file as another kind, which the ending of OUT names: .oam, "
      ".safetensors, .npz, or .npy for a single tensor");
  const auto options = std::make_shared<Options>();
  sub->add_option("IN", options->in, ".oam, safetensors, .npy or .npz")->required();
  sub->add_option("OUT", options->out, "The file to write; an old one is replaced")->required();
  sub->add_option("--quantize", options->quantize,
                  "Store matrices in 4 or 8 bits, without the optimizer (.oam)")
      ->check(CLI::IsMember({"q4", "q8"}));
  sub->add_flag("--with-state", options->with_state,
                "Take a checkpoint's buffers and counters along with its weights");
  sub->add_flag("--compress", options->compress, "Deflate the members (.npz)");
  sub->callback([&action, options] { action = [options] { convert(*options); }; });
}

}  // namespace oa::command
