// How a model reads prompts and one more token, drawing on the device, and the replay of a token.
#include "oa/ml/nn/generation.h"

#include <algorithm>

#include "oa/core/error.h"
#include "oa/engine/engine_core.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index.h"
#include "oa/matrix/movement.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/nn/init.h"

namespace oa::ml::nn {
namespace {

constexpr std::string_view kOp = "Generation";

// What differs between models: where they keep what they have read.
class Reader {
 public:
  virtual ~Reader() = default;
  virtual Module& model() = 0;
  // How many of a row's tokens to read when it has `count`, so that there is room for another.
  virtual size_t window(size_t count) const = 0;
  // Reads rows of tokens anew, padded to [B, context]; the logits [B, V] of what follows them.
  virtual Matrix read(const Matrix& tokens, std::span<const i64> lengths) = 0;
  // One more token U32 [B] per row. Can be captured.
  virtual Matrix step(const Matrix& tokens) = 0;
  virtual void count_replay() = 0;
  virtual bool full() const = 0;  // step() has to give way to read()
};

class CacheReader final : public Reader {
 public:
  CacheReader(std::shared_ptr<Transformer> model, i64 batch)
      : model_(std::move(model)), state_(model_->new_state(batch)) {}
  Module& model() override { return *model_; }
  size_t window(size_t count) const override {
    const auto context = static_cast<size_t>(model_->context_length());
    return count > context ? (context + 1) / 2 : count;
  }
  Matrix read(const Matrix& tokens, std::span<const i64> lengths) override {
    if (state_.longest() > 0) state_.reset();
    return model_->prefill(tokens, lengths, state_);
  }
  Matrix step(const Matrix& tokens) override { return model_->step(tokens, state_); }
  void count_replay() override { state_.count_replays(1); }
  bool full() const override { return state_.longest() >= model_->context_length(); }

 private:
  std::shared_ptr<Transformer> model_;
  Transformer::State state_;
};

// Keeps the last tokens themselves.
class WindowReader final : public Reader {
 public:
  WindowReader(const Engine& engine, std::shared_ptr<Module> model, i64 context, i64 batch)
      : model_(std::move(model)),
        context_(context),
        window_(oa::matrix::zeros(engine, {batch, context}, DType::U32)),
        lengths_(oa::matrix::zeros(engine, {batch, 1}, DType::I32)) {}
  Module& model() override { return *model_; }
  size_t window(size_t count) const override {
    return std::min(count, static_cast<size_t>(context_));
  }
  Matrix read(const Matrix& tokens, std::span<const i64> lengths) override {
    window_.assign(tokens);
    const std::vector<i32> length(lengths.begin(), lengths.end());
    lengths_.write<i32>(length);
    return logits();
  }
  Matrix step(const Matrix& tokens) override {
    using namespace oa::matrix;  // NOLINT
    const Matrix token = tokens.unsqueeze(1);
    const Matrix at = arange_like(lengths_, context_, 0, DType::I32).unsqueeze(0);
    const Matrix moved = context_ > 1 ? concat({slice(window_, 1, 1, context_), token}, 1) : token;
    const Matrix most = full_like(lengths_, static_cast<f64>(context_));
    window_.assign(where(equal(lengths_, most), moved, where(equal(at, lengths_), token, window_)));
    lengths_.assign(minimum(lengths_ + full_like(lengths_, 1), most));
    return logits();
  }
  void count_replay() override {}
  bool full() const override { return false; }

 private:
  // Of each row's last token.
  Matrix logits() {
    const i64 batch = window_.shape()[0];
    const Matrix all = model_->forward(window_);
    if (!all.valid() || all.rank() != 2 || all.shape()[0] != batch * context_) {
      invalid(kOp, "logits do not fit, got {}, expected [{}, V]",
              all.valid() ? all.shape() : Shape(), batch * context_);
    }
    const Matrix row = oa::matrix::arange_like(lengths_, batch, 0, DType::I32);
    const Matrix first = row * oa::matrix::full_like(row, static_cast<f64>(context_));
    const Matrix last = first + lengths_.squeeze(1) - oa::matrix::full_like(row, 1);
    return oa::matrix::gather(all, last);
  }

  std::shared_ptr<Module> model_;
  i64 context_;
  Matrix window_;   // U32 [B, context]
  Matrix lengths_;  // I32 [B, 1]
};

}  // namespace

struct Generation::State {
  Ref<EngineCore> core;
  i64 batch;
  i64 context;
  GenerationOptions options;
  std::unique_ptr<Reader> reader;
  Matrix tokens;  // U32 [B]: the latest
  Matrix draws;   // U32 [2]: how many were made
  Matrix logits;
  ExecutionPlan plan;
  std::vector<std::vector<u32>> seen;  // of each row, as much as may be read again

  State(Engine& engine, i64 rows, i64 most, const GenerationOptions& o)
      : core(&engine.core()),
        batch(rows),
        context(most),
        options(o),
        tokens(oa::matrix::zeros(engine, {rows}, DType::U32)),
        draws(oa::matrix::zeros(engine, {2}, DType::U32)) {}

  // Records the draw of the next tokens.
  void draw(const Matrix& from) {
    const oa::matrix::RandomSource source(options.seed, draw_step(draws));
    tokens.assign(
        oa::matrix::cast(oa::matrix::sample_logits(from, options.sample, source), DType::U32));
  }
  void read_anew() {
    const NoGrad quiet;
    const ScopedEval eval = reader->model().scoped_eval();
    std::vector<u32> window(static_cast<size_t>(batch * context));
    std::vector<i64> lengths;
    for (size_t b = 0; b < seen.size(); ++b) {
      const size_t count = reader->window(seen[b].size());
      seen[b].erase(seen[b].begin(), seen[b].end() - static_cast<std::ptrdiff_t>(count));
      std::copy(seen[b].begin(), seen[b].end(),
                window.begin() + static_cast<std::ptrdiff_t>(b) * context);
      lengths.push_back(static_cast<i64>(count));
    }
    const Matrix rows(core->upload(kOp, {DType::U32, {batch, context}}, window.data()));
    logits = reader->read(rows, lengths);
    draw(logits);
  }
  Matrix record_step() {
    const NoGrad quiet;
    const ScopedEval eval = reader->model().scoped_eval();
    const Matrix result = reader->step(tokens);
    draw(result);
    return result;
  }
  void step() {
    if (!options.capture) {
      logits = record_step();
      return;
    }
    if (!plan.valid()) {
      plan = core->capture([&] { return std::vector<Matrix>{record_step()}; }, {});
    }
    logits = plan.results()[0];
    core->submit(plan, false, kOp);
    reader->count_replay();
  }
  std::vector<u32> take() {
    std::vector<u32> drawn;
    try {
      drawn = tokens.read<u32>();
    } catch (...) {
      seen.clear();  // nothing to go on from
      throw;
    }
    for (size_t b = 0; b < drawn.size(); ++b) {
      seen[b].push_back(drawn[b]);
      const size_t most = static_cast<size_t>(context) + 1;  // what is older is never read again
      if (seen[b].size() > 2 * most) {
        seen[b].erase(seen[b].begin(), seen[b].end() - static_cast<std::ptrdiff_t>(most));
      }
    }
    return drawn;
  }
};

Generation::Generation(Engine& engine, std::shared_ptr<Transformer> model, i64 batch,
                       const GenerationOptions& options) {
  if (!model) invalid(kOp, "model, got none, expected one");
  need_sizes(kOp, {batch});
  state_ = std::make_unique<State>(engine, batch, model->context_length(), options);
  state_->reader = std::make_unique<CacheReader>(std::move(model), batch);
}

Generation::Generation(Engine& engine, std::shared_ptr<Module> model, i64 context, i64 batch,
                       const GenerationOptions& options) {
  if (!model) invalid(kOp, "model, got none, expected one");
  need_sizes(kOp, {context, batch});
  state_ = std::make_unique<State>(engine, batch, context, options);
  state_->reader = std::make_unique<WindowReader>(engine, std::move(model), context, batch);
}

Generation::Generation(Generation&&) noexcept = default;
Generation& Generation::operator=(Generation&&) noexcept = default;
Generation::~Generation() = default;

std::vector<u32> Generation::start(std::span<const std::vector<u32>> prompts) {
  State& s = *state_;
  if (prompts.size() != static_cast<size_t>(s.batch)) {
    invalid(kOp, "wrong number of prompts, got {}, expected {}", prompts.size(), s.batch);
  }
  for (size_t b = 0; b < prompts.size(); ++b) {
    if (prompts[b].empty()) invalid(kOp, "prompt {} is empty, expected a token or more", b);
  }
  s.seen.assign(prompts.begin(), prompts.end());
  for (std::vector<u32>& row : s.seen) {
    const size_t count = std::min(row.size(), static_cast<size_t>(s.context));
    row.erase(row.begin(), row.end() - static_cast<std::ptrdiff_t>(count));
  }
  s.draws.assign(oa::matrix::full_like(s.draws, 0));
  try {
    s.read_anew();
  } catch (...) {
    s.seen.clear();  // nothing to go on from
    throw;
  }
  return s.take();
}

std::vector<u32> Generation::start(const std::vector<u32>& prompt) {
  return start(std::vector<std::vector<u32>>(static_cast<size_t>(state_->batch), prompt));
}

std::vector<u32> Generation::next() {
  State& s = *state_;
  if (s.seen.empty()) fail(ErrorKind::FailedPrecondition, kOp, "next() before start()");
  if (s.reader->full()) {
    s.read_anew();
  } else {
    s.step();
  }
  return s.take();
}

i64 Generation::batch() const { return state_->batch; }
i64 Generation::context_length() const { return state_->context; }
const Matrix& Generation::logits() const { return state_->logits; }
const ExecutionPlan& Generation::plan() const { return state_->plan; }

}  // namespace oa::ml::nn
