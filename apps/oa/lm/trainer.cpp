#include "apps/oa/lm/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

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
#include "oa/ml/training/csv_logger.h"
#include "oa/ml/training/learning_rate_scheduler.h"
#include "oa/ml/training/loss_curve.h"
#include "oa/ml/training/progress_bar.h"
#include "oa/ml/training/tensorboard_logger.h"
#include "oa/ml/training/validation.h"

namespace oa::command {

using ml::training::ItTraining;
using ml::training::TrainingCallbackContext;
using ml::training::TrainingControl;
using ml::training::ValidationResult;

namespace {

constexpr std::string_view kOp = "train";
constexpr u64 kBpeSample = 16u << 20;  // bytes that a vocabulary is trained on
constexpr i64 kUntimedSteps = 3;       // the first ones compile
constexpr i64 kTimedSteps = 10;        // after which the length of a step is known well enough

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

LmTrainer::LmTrainer(Engine& engine, std::filesystem::path folder, LmFile file)
    : engine_(engine), folder_(std::move(folder)), file_(std::move(file)) {
  open_data();
  model_ = LanguageModel::create(engine_, file_.model);
  parameters_ = model_.module->all_parameters();
  optimizer_ = make_optimizer(file_.train, parameters_);
  if (file_.train.precision == token(Precision::F16)) {
    loss_scale_.emplace(engine_);
    if (file_.progress.loss_scale.scale > 0) loss_scale_->restore(file_.progress.loss_scale);
  }
  const Shape shape{file_.train.batch, file_.model.context};
  const std::vector<u32> zeros(static_cast<size_t>(shape.elements()));
  targets_ = Matrix::from_slice<u32>(engine_, {shape.elements()}, zeros);
  inputs_ = file_.model.vocab <= 256
                ? Matrix::from_slice<u8>(engine_, shape, std::vector<u8>(zeros.size()))
                : Matrix::from_slice<u32>(engine_, shape, zeros);
}

LmTrainer LmTrainer::create(Engine& engine, const std::filesystem::path& folder,
                            const LmModelConfig& model, const LmTrainConfig& train) {
  check(model, train);
  if (std::filesystem::exists(folder / "last.oam")) {
    invalid(kOp, "{} holds a run already, expected --resume or another --out", folder.string());
  }
  remove_abandoned(folder);
  LmTrainer trainer(engine, folder, {.model = model, .train = train});
  trainer.file_.progress.planned_steps = train.steps;
  if (train.epochs > 0) trainer.plan_epochs(train.epochs);
  nlohmann::json config{{"model", trainer.file_.model}, {"train", train}};
  const std::string text = config.dump(2) + "\n";
  write_file(folder / "config.json", {reinterpret_cast<const u8*>(text.data()), text.size()});
  return trainer;
}

LmTrainer LmTrainer::resume(Engine& engine, const std::filesystem::path& folder,
                            const LmTrainConfig& plan) {
  const std::filesystem::path last = folder / "last.oam";
  if (!std::filesystem::exists(last)) {
    invalid(kOp, "{} holds no run to resume, expected a folder with last.oam", folder.string());
  }
  remove_abandoned(folder);
  LmFile file = read_lm_file(last);
  if (plan.steps > 0) file.progress.planned_steps = plan.steps;
  if (plan.minutes > 0) {
    file.train.minutes = plan.minutes;
    file.progress.planned_steps = 0;
  }
  LmTrainer trainer(engine, folder, std::move(file));
  if (plan.epochs > 0) trainer.plan_epochs(plan.epochs);
  ml::load_checkpoint(engine, last, *trainer.model_.module, *trainer.optimizer_);
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
  text_bytes_ = files.bytes();
  token_count_ = tokens.size();
  const auto context = static_cast<u64>(file_.model.context);
  const ml::data::Split split =
      ml::data::split_tokens(tokens.size(), file_.train.validation_share, context);
  windows_.emplace(tokens, split.train, context, file_.model.seed);
  if (split.validation.size() > context) validation_.emplace(tokens, split.validation, context);
}

std::unique_ptr<ml::CheckpointOptimizer> make_optimizer(
    const LmTrainConfig& t, const std::vector<ml::Parameter>& parameters) {
  if (t.optimizer == "sgd") {
    return std::make_unique<ml::Sgd>(parameters, t.learning_rate, 0.9, t.weight_decay);
  }
  if (t.optimizer == "adam") return std::make_unique<ml::Adam>(parameters, t.learning_rate);
  if (t.optimizer == "muon") {
    ml::MuonOptions options;
    options.weight_decay = t.weight_decay;
    return std::make_unique<ml::Muon>(parameters, t.learning_rate, options);
  }
  return std::make_unique<ml::AdamW>(parameters, t.learning_rate, t.weight_decay);
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

void LmTrainer::write_batch(i64 step) {
  const auto first = static_cast<u64>(step) * static_cast<u64>(file_.train.batch);
  fill_batch(file_.model.vocab, inputs_, targets_,
             [&](auto in, auto out) { windows_->fill(first, in, out); });
}

// A step whose gradients are not finite changes nothing.
ml::training::StepRecord LmTrainer::record_step() {
  ml::GradientTape tape;
  const Matrix loss = ml::loss::cross_entropy(model_.module->forward(inputs_), targets_);
  tape.backward(loss_scale_ ? loss_scale_->scaled(loss) : loss);
  if (loss_scale_) loss_scale_->unscale(parameters_);
  const f64 most = file_.train.clip > 0 ? file_.train.clip
                   : loss_scale_        ? static_cast<f64>(std::numeric_limits<f32>::max())
                                        : 0;
  const Matrix guard = most > 0 ? ml::clip_grad_norm(parameters_, most) : loss;
  if (loss_scale_) loss_scale_->update(guard);
  return {loss, guard};
}

ValidationResult LmTrainer::validate() {
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
  return {.loss = sum / static_cast<f64>(batches),
          .batches = static_cast<u64>(batches),
          .samples = static_cast<u64>(batches) * batch};
}

void LmTrainer::plan_epochs(f64 epochs) {
  const f64 per_epoch = static_cast<f64>(windows_->windows()) / static_cast<f64>(file_.train.batch);
  file_.progress.planned_steps =
      std::max<i64>(1, static_cast<i64>(std::llround(epochs * per_epoch)));
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

// Saves the run at its boundaries, keeps the best model, and stops where the numbers end.
class LmTrainer::Saver final : public ml::training::TrainingCallback {
 public:
  Saver(LmTrainer& trainer, const ml::training::ValidationMetric& metric)
      : t_(trainer), metric_(metric), seconds_before_(trainer.file_.progress.seconds) {}

  TrainingControl on_step_end(const TrainingCallbackContext& context) override {
    const ml::training::TrainingSnapshot& s = context.snapshot();
    const f64 loss = s.last_loss.value_or(0);
    if (!std::isfinite(loss)) refuse(s.step_count, loss);
    LmProgress& p = t_.file_.progress;
    p.step = static_cast<i64>(s.step_count);
    p.seconds = seconds_before_ + s.elapsed;
    keep_best(context);
    const i64 every = t_.file_.train.save_every;
    if (every > 0 && p.step % every == 0) save(context, "last.oam");
    return TrainingControl::Continue;
  }
  TrainingControl on_train_end(const TrainingCallbackContext& context) override {
    keep_best(context);
    save(context, "last.oam");
    return TrainingControl::Continue;
  }

 private:
  void save(const TrainingCallbackContext& context, const char* name) {
    t_.file_.training = context.training_state();
    if (t_.loss_scale_) t_.file_.progress.loss_scale = t_.loss_scale_->state();
    t_.save(name);
  }
  void keep_best(const TrainingCallbackContext& context) {
    if (metric_.revision() == seen_) return;
    seen_ = metric_.revision();
    LmProgress& p = t_.file_.progress;
    if (p.best_step > 0 && !(metric_.result() < p.best_validation)) return;
    p.best_validation = metric_.result();
    p.best_step = p.step;
    save(context, "best.oam");
  }
  [[noreturn]] void refuse(u64 step, f64 loss) const {
    const std::filesystem::path last = t_.folder_ / "last.oam";
    const i64 saved = std::filesystem::exists(last) ? read_lm_file(last).progress.step : 0;
    fail(ErrorKind::FailedPrecondition, kOp,
         "the loss is {} at step {}; that step changed nothing, and {} holds step {}. Go on from "
         "there with --resume, with a smaller --lr or a --clip",
         loss, step, last.string(), saved);
  }

  LmTrainer& t_;
  ml::training::ValidationMetric metric_;
  u64 seen_ = 0;
  f64 seconds_before_;
};

void LmTrainer::run_until(i64 end, const std::atomic<bool>& stop) {
  LmProgress& p = file_.progress;
  const f64 bytes_per_token =
      static_cast<f64>(text_bytes_) / static_cast<f64>(std::max<u64>(1, token_count_));
  ItTraining training = ItTraining::create(
      engine_, *optimizer_,
      {.initial_step = static_cast<u64>(p.step),
       .total_steps = static_cast<u64>(end),
       .batch_size = static_cast<u64>(file_.train.batch),
       .sequence_length = static_cast<u64>(file_.model.context),
       .source_units_per_sample = bytes_per_token * static_cast<f64>(file_.model.context)});
  const u64 interval = validation_ ? static_cast<u64>(file_.train.validate_every) : 0;
  ml::training::Validation validation([&](const auto&) { return validate(); }, "val_loss",
                                      interval);
  ml::training::CsvLogger csv(folder_ / "metrics.csv");
  csv.add_metric(validation.metric());
  csv.add_column("learning_rate",
                 [](const TrainingCallbackContext& c) { return c.optimizer().learning_rate(); });
  ml::training::LossCurve curve(folder_ / "loss");
  curve.add_metric(validation.metric());
  curve.set_title(file_.model.architecture + ", " + file_.train.data);
  ml::training::TensorBoardLogger events(folder_ / "events");
  events.add_metric(validation.metric());
  ml::training::ProgressBar bar(20);
  Saver saver(*this, validation.metric());
  ml::training::LearningRateScheduler rates(schedule_);
  if (validation_ && interval > 0) training.add_callback(validation);
  training.add_callback(csv);
  training.add_callback(curve);
  training.add_callback(events);
  training.add_callback(bar);
  training.add_callback(rates);  // every file has the rate of the step that follows
  training.add_callback(saver);
  if (!file_.training.empty()) training.load_state(file_.training);
  while (!stop.load() &&
         training.step([&] { write_batch(p.step); }, [&] { return record_step(); })) {
  }
  training.finish();
}

f64 LmTrainer::run(const std::atomic<bool>& stop, i64 most) {
  LmProgress& p = file_.progress;
  const i64 last = most > 0 ? p.step + most : std::numeric_limits<i64>::max();
  make_schedule();
  if (p.planned_steps == 0) {
    // The first steps compile; from the next ones it is known how many fit into the time.
    run_until(std::min(last, p.step + kUntimedSteps), stop);
    const f64 before = p.seconds;
    const i64 first = p.step;
    run_until(std::min(last, p.step + kTimedSteps), stop);
    if (p.step > first) plan_from_time((p.seconds - before) / static_cast<f64>(p.step - first));
  }
  if (!stop.load() && p.step < last && !done()) run_until(std::min(last, p.planned_steps), stop);
  return p.best_step > 0 ? p.best_validation : std::nan("");
}

}  // namespace oa::command
