#include "apps/oa/lm/trainer.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "apps/oa/lm/metrics.h"
#include "oa/core/error.h"
#include "oa/core/file.h"
#include "oa/matrix/elementwise.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/data/text_files.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/clip.h"
#include "oa/ml/optim/muon.h"
#include "oa/ml/optim/sgd.h"

namespace oa::command {
namespace {

constexpr std::string_view kOp = "train";
constexpr u64 kBpeSample = 16u << 20;  // bytes that a vocabulary is trained on
constexpr i64 kTimedSteps = 12;        // after which the length of a step is known well enough
constexpr i64 kUntimedSteps = 3;       // the first ones compile

using Clock = std::chrono::steady_clock;
f64 seconds_since(Clock::time_point t) {
  return std::chrono::duration<f64>(Clock::now() - t).count();
}

// Fills tokens in the narrowest type that holds the vocabulary.
template <class Fill>
void fill_batch(i64 vocab, const Matrix& inputs, const Matrix& targets, Fill&& fill) {
  const auto count = static_cast<size_t>(targets.num_elements());
  std::vector<u32> target(count);
  if (vocab <= 256) {
    std::vector<u8> input(count);
    fill(std::span<u8>(input), std::span<u32>(target));
    inputs.write<u8>(input);
  } else {
    std::vector<u32> input(count);
    fill(std::span<u32>(input), std::span<u32>(target));
    inputs.write<u32>(input);
  }
  targets.write<u32>(target);
}

}  // namespace

LmTrainer::LmTrainer(const Engine& engine, std::filesystem::path folder, LmFile file)
    : engine_(engine), folder_(std::move(folder)), file_(std::move(file)) {
  open_data();
  model_ = LanguageModel::create(engine_, file_.model);
  parameters_ = model_.module->all_parameters();
  make_optimizer();
  const Shape shape{file_.train.batch, file_.model.context};
  const std::vector<u32> zeros(static_cast<size_t>(shape.elements()));
  targets_ = Matrix::from_slice<u32>(engine_, {shape.elements()}, zeros);
  inputs_ = file_.model.vocab <= 256
                ? Matrix::from_slice<u8>(engine_, shape, std::vector<u8>(zeros.size()))
                : Matrix::from_slice<u32>(engine_, shape, zeros);
}

LmTrainer LmTrainer::create(const Engine& engine, const std::filesystem::path& folder,
                            const LmModelConfig& model, const LmTrainConfig& train) {
  check(model);
  check(train);
  if (std::filesystem::exists(folder / "last.oam")) {
    invalid(kOp, "{} holds a run already, expected --resume or another --out", folder.string());
  }
  LmTrainer trainer(engine, folder, {.model = model, .train = train});
  trainer.file_.progress.planned_steps = train.steps;
  if (train.steps == 0 && train.epochs > 0) {
    const f64 per_epoch =
        static_cast<f64>(trainer.windows_->windows()) / static_cast<f64>(train.batch);
    trainer.file_.progress.planned_steps =
        std::max<i64>(1, static_cast<i64>(std::llround(train.epochs * per_epoch)));
  }
  nlohmann::json config{{"model", trainer.file_.model}, {"train", train}};
  const std::string text = config.dump(2) + "\n";
  write_file(folder / "config.json", {reinterpret_cast<const u8*>(text.data()), text.size()});
  MetricsFile::start(folder / "metrics.csv");
  return trainer;
}

LmTrainer LmTrainer::resume(const Engine& engine, const std::filesystem::path& folder,
                            const LmTrainConfig& plan) {
  const std::filesystem::path last = folder / "last.oam";
  if (!std::filesystem::exists(last)) {
    invalid(kOp, "{} holds no run to resume, expected a folder with last.oam", folder.string());
  }
  LmFile file = read_lm_file(last);
  if (plan.steps > 0) file.progress.planned_steps = plan.steps;
  if (plan.minutes > 0) {
    file.train.minutes = plan.minutes;
    file.progress.planned_steps = 0;
  }
  LmTrainer trainer(engine, folder, std::move(file));
  ml::load_checkpoint(engine, last, *trainer.model_.module, *trainer.optimizer_);
  MetricsFile::cut(folder / "metrics.csv", trainer.file_.progress.step);
  return trainer;
}

void LmTrainer::open_data() {
  const ml::data::TextFiles files = ml::data::TextFiles::open(file_.train.data);
  if (file_.model.tokenizer == "bpe" && file_.bpe.empty()) {
    ml::BpeTokenizer bpe(static_cast<u64>(file_.model.vocab));
    bpe.train(files.head(kBpeSample), static_cast<u64>(file_.model.vocab) - 256);
    file_.bpe = bpe.to_text();
  }
  tokenizer_ = make_tokenizer(file_.model, file_.bpe);
  file_.model.vocab = tokenizer_->vocab_size();
  const ml::data::TokenStore tokens = ml::data::TokenStore::encode(files, *tokenizer_);
  const auto context = static_cast<u64>(file_.model.context);
  const ml::data::Split split =
      ml::data::split_tokens(tokens.size(), file_.train.validation_share, context);
  windows_.emplace(tokens, split.train, context, file_.model.seed);
  if (split.validation.size() > context) validation_.emplace(tokens, split.validation, context);
}

void LmTrainer::make_optimizer() {
  const LmTrainConfig& t = file_.train;
  if (t.optimizer == "sgd") {
    optimizer_ = std::make_unique<ml::Sgd>(parameters_, t.learning_rate, 0.9, t.weight_decay);
  } else if (t.optimizer == "adam") {
    optimizer_ = std::make_unique<ml::Adam>(parameters_, t.learning_rate);
  } else if (t.optimizer == "muon") {
    ml::MuonOptions options;
    options.weight_decay = t.weight_decay;
    optimizer_ = std::make_unique<ml::Muon>(parameters_, t.learning_rate, options);
  } else {
    optimizer_ = std::make_unique<ml::AdamW>(parameters_, t.learning_rate, t.weight_decay);
  }
}

bool LmTrainer::done() const {
  return file_.progress.planned_steps > 0 && file_.progress.step >= file_.progress.planned_steps;
}

// Warm-up, then constant, half a cosine down to a tenth, or stable and down over the last fifth.
void LmTrainer::make_schedule() {
  const LmTrainConfig& t = file_.train;
  const f64 top = t.learning_rate;
  const auto warmup = static_cast<u64>(t.warmup);
  const auto total = static_cast<u64>(file_.progress.planned_steps);
  if (t.schedule == "constant" || total <= warmup) {
    schedule_ = std::make_shared<ml::WarmupScheduler>(top, warmup);
  } else if (t.schedule == "wsd") {
    const u64 decay = (total - warmup) / 5;
    schedule_ = std::make_shared<ml::WsdScheduler>(top, warmup, total - warmup - decay, decay);
  } else {
    schedule_ = std::make_shared<ml::LinearWarmupCosine>(warmup, total, top, top / 10);
  }
}

f64 LmTrainer::step() {
  const i64 step = file_.progress.step;
  const auto first = static_cast<u64>(step) * static_cast<u64>(file_.train.batch);
  fill_batch(file_.model.vocab, inputs_, targets_,
             [&](auto in, auto out) { windows_->fill(first, in, out); });
  optimizer_->set_learning_rate(schedule_->rate(static_cast<u64>(step)));
  optimizer_->zero_grad();
  ml::GradientTape tape;
  const Matrix loss = ml::loss::cross_entropy(model_.module->forward(inputs_), targets_);
  tape.backward(loss);
  if (file_.train.clip > 0) {
    optimizer_->step_if_finite(ml::clip_grad_norm(parameters_, file_.train.clip));
  } else {
    optimizer_->step_if_finite(loss);
  }
  optimizer_->zero_grad();
  return static_cast<f64>(loss.item());
}

f64 LmTrainer::validate() {
  if (!validation_) return std::nan("");
  const ml::NoGrad quiet;
  const ml::ScopedEval eval = model_.module->scoped_eval();
  const auto batch = static_cast<u64>(file_.train.batch);
  f64 sum = 0;
  i64 batches = 0;
  for (i64 b = 0; b < file_.train.validation_batches; ++b) {
    u64 rows = 0;
    fill_batch(file_.model.vocab, inputs_, targets_, [&](auto in, auto out) {
      rows = validation_->fill(static_cast<u64>(b) * batch, in, out);
    });
    // A batch that is not full would repeat what is in the buffers; one batch always counts.
    if (rows < batch && batches > 0) break;
    sum +=
        static_cast<f64>(ml::loss::cross_entropy(model_.module->forward(inputs_), targets_).item());
    ++batches;
    if (rows < batch) break;
  }
  return sum / static_cast<f64>(batches);
}

void LmTrainer::plan_from_time(f64 seconds_per_step) {
  const f64 left = file_.train.minutes * 60 - file_.progress.seconds;
  const auto more = static_cast<i64>(std::max(1.0, left / seconds_per_step));
  file_.progress.planned_steps = file_.progress.step + more;
  make_schedule();
}

void LmTrainer::save(const char* name) {
  ml::CheckpointInfo info{.architecture = "oa lm " + file_.model.architecture,
                          .extra = to_text(file_),
                          .step = file_.progress.step,
                          .learning_rate = static_cast<f32>(optimizer_->learning_rate()),
                          .best_metric = static_cast<f32>(file_.progress.best_validation),
                          .metric_name = "val_loss"};
  ml::save_checkpoint(folder_ / name, *model_.module, *optimizer_, info);
}

f64 LmTrainer::run(const std::atomic<bool>& stop, i64 most) {
  LmProgress& p = file_.progress;
  make_schedule();
  MetricsFile metrics(folder_ / "metrics.csv");
  ProgressLine line(p.planned_steps);
  const i64 tokens_per_step = file_.train.batch * file_.model.context;
  f64 last_validation = std::nan("");
  f64 timed = 0;
  i64 done_here = 0;
  while (!done() && !stop.load() && (most == 0 || done_here < most)) {
    const Clock::time_point begin = Clock::now();
    const f64 loss = step();
    if (!std::isfinite(loss)) {
      line.finish();
      fail(ErrorKind::FailedPrecondition, kOp,
           "the loss is {} at step {}; nothing was changed by that step, and {} holds step {}. A "
           "smaller --lr or a --clip helps, then go on with --resume",
           loss, p.step + 1, (folder_ / "last.oam").string(),
           std::filesystem::exists(folder_ / "last.oam")
               ? read_lm_file(folder_ / "last.oam").progress.step
               : 0);
    }
    ++p.step;
    ++done_here;
    const f64 seconds = seconds_since(begin);
    p.seconds += seconds;
    if (done_here > kUntimedSteps) timed += seconds;
    if (p.planned_steps == 0 && file_.train.minutes > 0 && done_here == kTimedSteps) {
      plan_from_time(timed / static_cast<f64>(kTimedSteps - kUntimedSteps));
      line.set_total(p.planned_steps);
    }
    const bool check =
        file_.train.validate_every > 0 && (p.step % file_.train.validate_every == 0 || done());
    f64 validation = std::nan("");
    if (check) {
      const Clock::time_point before = Clock::now();
      validation = validate();
      p.seconds += seconds_since(before);
      if (std::isfinite(validation)) {
        last_validation = validation;
        if (p.best_step == 0 || validation < p.best_validation) {
          p.best_validation = validation;
          p.best_step = p.step;
          save("best.oam");
        }
      }
    }
    metrics.add({p.step, loss, validation, optimizer_->learning_rate(), p.seconds,
                 p.step * tokens_per_step});
    line.show({p.step, loss, last_validation, static_cast<f64>(tokens_per_step) / seconds});
    if (file_.train.save_every > 0 && p.step % file_.train.save_every == 0) {
      metrics.flush();
      save("last.oam");
    }
  }
  line.finish();
  metrics.flush();
  save("last.oam");
  return last_validation;
}

}  // namespace oa::command
