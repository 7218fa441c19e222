// Learning rates that fall where a number does not, and metrics: fed at the right boundaries, and
// the same to the last bit however often a training is cut.
#include "oa/ml/training/plateau_scheduler.h"
#include "oa/ml/training/validation.h"
#include "tests/ml/training_support.h"

namespace oa::test {
namespace {

std::shared_ptr<ml::ReduceOnPlateau> plateau(u64 patience) {
  return std::make_shared<ml::ReduceOnPlateau>(0.1, 0.5, patience, 0.0);
}

TEST_F(TrainingTest, PlateauByTheMeanLossOfEpochs) {
  PlateauScheduler scheduler(plateau(0));
  ItTraining training = ItTraining::create(engine(), optimizer, config(8, 2));
  training.add_callback(scheduler);
  // Means 2, 3, 1, 1.
  for (const f64 loss : {1.0, 3.0, 3.0, 3.0, 2.0, 0.0, 1.0, 1.0}) step(training, loss);
  EXPECT_EQ(optimizer.rates, (std::vector<f64>{0.1, 0.1, 0.05, 0.05, 0.025}));
}

TEST_F(TrainingTest, PlateauByNewValuesOfAValidationOnly) {
  std::vector<f64> values = {5, std::nan(""), 5, 4};  // NaN is no new value
  size_t at = 0;
  Validation validation(
      [&](const TrainingSnapshot&) { return ValidationResult{values[at++], 1, 1}; }, "val_loss", 3);
  PlateauScheduler scheduler =
      PlateauScheduler::with_validation_metric(plateau(0), validation.metric());
  EXPECT_EQ(scheduler.state_key(), "plateau.val_loss");
  ItTraining training = ItTraining::create(engine(), optimizer, config(12));
  training.add_callback(validation);
  training.add_callback(scheduler);
  std::vector<f64> rates;
  for (int i = 0; i < 12; ++i) {
    step(training, 1);
    rates.push_back(optimizer.rate);
  }
  EXPECT_EQ(rates,
            (std::vector<f64>{0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05}));
  EXPECT_EQ(scheduler.schedule().state(), (ml::ReduceOnPlateau::State{0.05, 4, 0}));
}

TEST_F(TrainingTest, PlateauByValidationAtTheEndsOfEpochs) {
  f64 value = 1;
  Validation validation([&](const TrainingSnapshot&) { return ValidationResult{value, 1, 1}; });
  PlateauScheduler scheduler =
      PlateauScheduler::with_validation_metric(plateau(1), validation.metric());
  ItTraining training = ItTraining::create(engine(), optimizer, config(6, 2));
  training.add_callback(validation);
  training.add_callback(scheduler);
  for (int i = 0; i < 6; ++i) step(training, 1);
  EXPECT_EQ(optimizer.rates, (std::vector<f64>{0.1, 0.1, 0.1, 0.05}));
}

TEST_F(TrainingTest, PlateauByAMonitorEverySteps) {
  PlateauScheduler scheduler = PlateauScheduler::with_monitor(
      plateau(0), "last", [](const TrainingSnapshot& s) { return *s.last_loss; }, 2);
  ItTraining training = ItTraining::create(engine(), optimizer, config(6));
  training.add_callback(scheduler);
  for (const f64 loss : {9.0, 1.0, 0.0, std::nan(""), 5.0, 0.5}) step(training, loss);
  EXPECT_EQ(optimizer.rates, (std::vector<f64>{0.1, 0.1, 0.05, 0.05}));
}

TEST_F(TrainingTest, PlateauRefuses) {
  EXPECT_EQ(error_of([] { PlateauScheduler(nullptr); }, ErrorKind::InvalidArgument),
            "PlateauScheduler: schedule, got none, expected one");
  EXPECT_EQ(error_of([] { PlateauScheduler::with_monitor(plateau(1), "x", nullptr); },
                     ErrorKind::InvalidArgument),
            "PlateauScheduler: monitor, got none, expected a function");
  PlateauScheduler scheduler(plateau(1));
  const auto before = scheduler.schedule().state();
  EXPECT_EQ(error_of([&] { scheduler.load_state(R"({"rate":-1,"best":0,"bad":0})"); },
                     ErrorKind::DataLoss),
            "PlateauScheduler: state \"rate\", got -1, expected a finite number of 0 or more");
  error_of([&] { scheduler.load_state(R"({"rate":1,"best":"x","bad":0})"); }, ErrorKind::DataLoss);
  error_of([&] { scheduler.load_state(R"({"rate":1,"best":0})"); }, ErrorKind::DataLoss);
  EXPECT_EQ(scheduler.schedule().state(), before);
}

// Losses whose sums round.
f64 loss_at(u64 step) { return 0.1 + static_cast<f64>(step * 3 % 5) / 3; }

// Everything that a training is seen to do: the metrics and the rate after every step.
struct Seen {
  std::vector<f64> numbers;
  std::string state;
};

class Cut : public TrainingTest, public testing::WithParamInterface<u64> {
 protected:
  // Steps `from` to `to` of a training of epochs of `per_epoch` steps, which goes on from `state`.
  void part(u64 from, u64 to, u64 per_epoch, Seen& seen) {
    Validation validation(
        [&](const TrainingSnapshot& s) {
          return ValidationResult{1 + loss_at(s.step_count), 1, 1};
        },
        "val_loss", 2);
    PlateauScheduler scheduler =
        PlateauScheduler::with_validation_metric(plateau(1), validation.metric());
    LossMetric mean, last("loss", LossAggregation::Last);
    ItTraining training = ItTraining::create(engine(), optimizer, config(12, per_epoch, from));
    training.add_metric(mean);
    training.add_metric(last);
    training.add_callback(validation);
    training.add_callback(scheduler);
    if (from > 0) training.load_state(seen.state);
    for (u64 i = from + 1; i <= to; ++i) {
      step(training, loss_at(i));
      seen.numbers.insert(seen.numbers.end(),
                          {mean.result(), last.result(), static_cast<f64>(mean.count()),
                           optimizer.rate, training.snapshot().epoch_mean_loss});
    }
    seen.state = training.save_state();
  }
};

TEST_P(Cut, AfterAnyStepChangesNoBit) {
  Seen straight;
  part(0, 12, GetParam(), straight);
  EXPECT_LT(optimizer.rate, 0.1) << "the rate must have something to remember";
  for (u64 cut = 1; cut < 12; ++cut) {
    Seen parts;
    part(0, cut, GetParam(), parts);
    optimizer.rate = 77;  // what the next process' optimizer starts with
    part(cut, 12, GetParam(), parts);
    EXPECT_EQ(parts.numbers, straight.numbers) << cut;
    EXPECT_EQ(parts.state, straight.state) << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(StepsPerEpoch, Cut, testing::Values(0, 1, 5),
                         [](const auto& i) { return std::to_string(i.param); });

TEST_F(TrainingTest, MetricsThatAStateDoesNotNameStartAfresh) {
  LossMetric named("a"), unnamed("b");
  std::string state;
  {
    ItTraining training = ItTraining::create(engine(), optimizer, config(9));
    training.add_metric(named);
    step(training, 4);
    state = training.save_state();
  }
  unnamed.update_step(100, {});
  ItTraining training = ItTraining::create(engine(), optimizer, config(9, 0, 1));
  training.add_metric(named);
  training.add_metric(unnamed);
  training.load_state(state);
  step(training, 2);
  EXPECT_EQ(named.result(), 3);
  EXPECT_EQ(unnamed.result(), 2);
}

TEST_F(TrainingTest, ADamagedMetricChangesNothing) {
  LossMetric first("a"), second("b");
  ItTraining training = ItTraining::create(engine(), optimizer, config(9, 0, 1));
  training.add_metric(first);
  training.add_metric(second);
  const std::string state =
      R"({"version":1,"step":1,"loss_count":1,"loss_sum":1,"epoch_loss_count":1,"epoch_loss_sum":1,)"
      R"("callbacks":{},"metrics":{"a":{"count":3,"sum":3,"last":1},"b":{"count":-1,"sum":3,"last":1}}})";
  EXPECT_EQ(error_of([&] { training.load_state(state); }, ErrorKind::DataLoss),
            "LossMetric: state \"count\", got -1, expected a number of 0 or more");
  EXPECT_EQ(first.count(), 0u);
}

}  // namespace
}  // namespace oa::test
