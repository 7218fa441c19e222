// `oa generate` and `oa eval`: writes with a language model, and measures it on text.

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "apps/oa/commands.h"
#include "apps/oa/lm/model_file.h"
#include "apps/oa/lm/options.h"
#include "oa/core/error.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/data/text_files.h"
#include "oa/ml/data/windows.h"
#include "oa/ml/loss/cross_entropy.h"

namespace oa::command {
namespace {

struct Loaded {
  LmFile file;
  std::unique_ptr<ml::tokenizer::Tokenizer> tokenizer;
  LanguageModel model;
};

Loaded load(const Engine& engine, const std::string& path) {
  Loaded l{.file = read_lm_file(path)};
  l.tokenizer = make_tokenizer(l.file.model, l.file.bpe);
  l.model = LanguageModel::create(engine, l.file.model);
  ml::load_model(engine, path, *l.model.module);
  return l;
}

void generate(const GenerateCommand& c) {
  check(c.options);
  Engine engine = Engine::open({.device = c.device});
  const Loaded l = load(engine, c.model);
  fmt::print("{}", c.prompt);
  GenerateOptions options = c.options;
  options.on_text = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const auto begin = std::chrono::steady_clock::now();
  (void)continue_text(engine, l.model, *l.tokenizer, c.prompt, options);
  const f64 seconds = std::chrono::duration<f64>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("\n");
  std::fflush(stdout);  // before what goes to the other stream
  fmt::print(stderr, "{} tokens in {:.2f} s, {:.0f} token/s\n", options.tokens, seconds,
             static_cast<f64>(options.tokens) / seconds);
}

struct EvalCommand {
  std::string model, data, device;
  i64 batch = 16;
};

void eval(const EvalCommand& c) {
  if (c.batch < 1) invalid("eval", "bad --batch, got {}, expected 1 or more", c.batch);
  Engine engine = Engine::open({.device = c.device});
  const Loaded l = load(engine, c.model);
  const ml::data::TextFiles files = ml::data::TextFiles::open(c.data);
  const ml::data::TokenStore tokens = ml::data::TokenStore::encode(files, *l.tokenizer);
  const auto context = static_cast<u64>(l.file.model.context);
  const ml::data::SequentialWindows windows(tokens, {0, tokens.size()}, context);
  const ml::NoGrad quiet;
  const ml::ScopedEval mode = l.model.module->scoped_eval();
  f64 sum = 0;
  u64 rows_seen = 0;
  while (rows_seen < windows.windows()) {
    const u64 rows = std::min<u64>(static_cast<u64>(c.batch), windows.windows() - rows_seen);
    std::vector<u32> in(rows * context), out(rows * context);
    windows.fill(rows_seen, std::span<u32>(in), std::span<u32>(out));
    const Shape shape{static_cast<i64>(rows), l.file.model.context};
    const Matrix x = Matrix::from_slice<u32>(engine, shape, in);
    const Matrix y = Matrix::from_slice<u32>(engine, {shape.elements()}, out);
    sum += static_cast<f64>(ml::loss::cross_entropy(l.model.module->forward(x), y).item()) *
           static_cast<f64>(rows);
    rows_seen += rows;
  }
  const f64 loss = sum / static_cast<f64>(rows_seen);
  const f64 per_byte =
      loss / std::log(2.0) * static_cast<f64>(tokens.size()) / static_cast<f64>(files.bytes());
  fmt::print("loss {:.4f} per token, perplexity {:.2f}, {:.4f} bits per byte, over {} tokens\n",
             loss, std::exp(loss), per_byte, rows_seen * context);
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("generate", "Write with a language model");
  auto c = std::make_shared<GenerateCommand>();
  declare(*sub, *c);
  sub->callback([c, &action] { action = [c] { generate(*c); }; });
}

void add_eval(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("eval", "Measure a language model on text");
  auto c = std::make_shared<EvalCommand>();
  sub->add_option("--model", c->model, "A model file, such as run/best.oam")->required();
  sub->add_option("--data", c->data, "A text file, or a folder of text files")->required();
  sub->add_option("--batch", c->batch, "Windows at a time")->capture_default_str();
  sub->add_option("--device", c->device, "cpu, vulkan, vulkan:N or lavapipe; default: the best");
  sub->callback([c, &action] { action = [c] { eval(*c); }; });
}

}  // namespace oa::command
