// ItTraining: the order of calls, counts, times and rates, errors, states.
#include "oa/core/error.h"
#include "oa/ml/training/learning_rate_scheduler.h"
#include "oa/ml/training/phase_schedule.h"
#include "oa/ml/training/validation.h"
#include "tests/ml/training_support.h"

namespace oa::test {
namespace {

TEST_F(TrainingTest, CallsComeInOrder) {
  std::string log;
  Recorder a(log, "1"), b(log, "2");
  ItTraining training = ItTraining::create(engine(), optimizer, config(3, 2));
  training.add_callback(a);
  training.add_callback(b);
  while (step(training, 1)) {
  }
  EXPECT_EQ(log, "1b2b1E2E1s2s1s2s1e2e1E2E1s2s1e2e");
  training.finish();
  EXPECT_TRUE(log.ends_with("1e2e1t2t"));
  const size_t length = log.size();
  training.finish();
  EXPECT_EQ(log.size(), length) << "on_train_end came twice";
  EXPECT_FALSE(training.begin_step());
  EXPECT_EQ(optimizer.steps, 3u);
}

TEST_F(TrainingTest, StepRunsPrepareAndRecord) {
  const Matrix input = matrix::zeros(engine(), {1});
  ItTraining training = ItTraining::create_eager(engine(), optimizer, config(2));
  std::vector<f64> losses;
  f32 next = 0;
  while (training.step(
      [&] {
        next += 1;
        input.write<f32>(std::array{next});
      },
      [&] { return input.add(input); })) {
    losses.push_back(*training.snapshot().last_loss);
  }
  EXPECT_EQ(losses, (std::vector<f64>{2, 4}));
  EXPECT_EQ(optimizer.zeroed, 2u);
  EXPECT_EQ(optimizer.steps, 2u);
}

TEST_F(TrainingTest, PrepareMayNotRecord) {
  const Matrix input = matrix::zeros(engine(), {});
  ItTraining training = ItTraining::create_eager(engine(), optimizer, config(2));
  Matrix kept;
  EXPECT_EQ(
      error_of([&] { training.step([&] { kept = input.add(input); }, [&] { return input; }); },
               ErrorKind::FailedPrecondition),
      "step: prepare recorded operations, expected writes of inputs only");
  EXPECT_TRUE(training.stop_requested());
  EXPECT_FALSE(training.begin_step());
  EXPECT_EQ(optimizer.steps, 0u);
}

TEST_F(TrainingTest, RefusesWrongLosses) {
  ItTraining training = ItTraining::create(engine(), optimizer, config(2));
  const Matrix one = matrix::ones(engine(), {1, 1});
  EXPECT_EQ(error_of([&] { training.complete_step(one); }, ErrorKind::FailedPrecondition),
            "complete_step: no step is open");
  ASSERT_TRUE(training.begin_step());
  EXPECT_EQ(error_of([&] { training.complete_step(matrix::ones(engine(), {2})); },
                     ErrorKind::InvalidArgument),
            "complete_step: loss, got f32 [2], expected one f32 element");
  EXPECT_EQ(error_of([&] { training.complete_step(matrix::ones(engine(), {}, DType::I32)); },
                     ErrorKind::InvalidArgument),
            "complete_step: loss, got i32 [], expected one f32 element");
  EXPECT_EQ(error_of([&] { training.complete_step(Matrix()); }, ErrorKind::InvalidArgument),
            "complete_step: loss, got an empty Matrix, expected one f32 element");
  Engine other = Engine::open({.device = "cpu"});
  EXPECT_EQ(error_of([&] { training.complete_step(matrix::ones(other, {})); },
                     ErrorKind::InvalidArgument),
            "complete_step: loss, got a value of another engine, expected one of the training's "
            "engine");
  // The step is still open, and goes on with a right one.
  EXPECT_EQ(error_of([&] { training.finish(); }, ErrorKind::FailedPrecondition),
            "finish: a step is open");
  training.complete_step(one);
  EXPECT_EQ(training.snapshot().step_count, 1u);
  EXPECT_EQ(error_of([&] { ItTraining::create(other, optimizer, config(1)); },
                     ErrorKind::InvalidArgument),
            "ItTraining: optimizer, got one of another engine, expected one of this engine");
}

TEST_F(TrainingTest, AGuardGoesToTheOptimizer) {
  ItTraining training = ItTraining::create(engine(), optimizer, config(2));
  const Matrix loss = matrix::ones(engine(), {});
  ASSERT_TRUE(training.begin_step());
  EXPECT_EQ(error_of([&] { training.complete_step_if_finite(loss, matrix::ones(engine(), {3})); },
                     ErrorKind::InvalidArgument),
            "complete_step_if_finite: guard, got f32 [3], expected one f32 element");
  training.complete_step_if_finite(loss, Matrix::from_f32(engine(), {1}, std::array{7.0f}));
  EXPECT_EQ(optimizer.guards, (std::vector<f32>{7}));
  EXPECT_EQ(training.snapshot().step_count, 1u);
}

TEST_F(TrainingTest, RefusesWrongConfigs) {
  const auto create = [&](const ItTrainingConfig& c) {
    ItTraining::create(engine(), optimizer, c);
  };
  ItTrainingConfig c = config(3, 0, 4);
  EXPECT_EQ(error_of([&] { create(c); }, ErrorKind::InvalidArgument),
            "ItTraining: initial_step, got 4, expected at most total_steps 3");
  c = config(3);
  c.source_units_per_sample = std::nan("");
  EXPECT_EQ(error_of([&] { create(c); }, ErrorKind::InvalidArgument),
            "ItTraining: source_units_per_sample, got nan, expected a finite number of 0 or more");
  c = config(0);
  c.epoch_steps = {~u64{0}, 2};
  error_of([&] { create(c); }, ErrorKind::ResourceExhausted);
  c = config(1);
  c.batch_size = u64{1} << 40;
  c.sequence_length = u64{1} << 40;
  error_of([&] { create(c); }, ErrorKind::ResourceExhausted);
}

TEST_F(TrainingTest, EpochsOfDifferentLengths) {
  ItTrainingConfig c = config(0);
  c.epoch_steps = {2, 0, 3};  // 0 counts as 1
  ItTraining training = ItTraining::create(engine(), optimizer, c);
  EXPECT_EQ(training.config().total_steps, 6u);
  std::string seen;
  while (step(training, 1)) {
    const TrainingSnapshot s = training.snapshot();
    seen += fmt::format("{}:{}/{}{}{} ", s.epoch, s.step_in_epoch, s.steps_in_epoch,
                        s.is_epoch_boundary ? "!" : "", s.is_last_step ? "." : "");
  }
  EXPECT_EQ(seen, "1:1/2 1:2/2! 2:1/1! 3:1/3 3:2/3 3:3/3!. ");
}

TEST_F(TrainingTest, ShortLastEpochAndResume) {
  std::string log;
  Recorder r(log);
  ItTraining training = ItTraining::create(engine(), optimizer, config(5, 2, 3));
  training.add_callback(r);
  ASSERT_TRUE(step(training, 1));
  EXPECT_EQ(training.snapshot().epoch, 2u);
  EXPECT_EQ(training.snapshot().step_in_epoch, 2u);
  EXPECT_EQ(training.snapshot().total_epochs, 3u);
  EXPECT_TRUE(training.snapshot().is_epoch_boundary);
  ASSERT_TRUE(step(training, 1));
  EXPECT_EQ(training.snapshot().steps_in_epoch, 1u);
  EXPECT_TRUE(training.snapshot().is_epoch_boundary) << "the last step ends an epoch";
  EXPECT_FALSE(step(training, 1));
  EXPECT_EQ(log, "bEseEse");
}

TEST_F(TrainingTest, NothingLeftToDo) {
  std::string log;
  Recorder r(log);
  ItTraining training = ItTraining::create(engine(), optimizer, config(5, 2, 5));
  training.add_callback(r);
  EXPECT_FALSE(training.begin_step());
  training.finish();
  EXPECT_EQ(log, "bt");
  EXPECT_TRUE(std::isnan(training.snapshot().training_mean_loss));
}

TEST_F(TrainingTest, StopRunsTheWholeBoundary) {
  for (const char at : {'b', 'E', 's', 'e'}) {
    std::string log;
    Recorder first(log, "1"), second(log, "2");
    first.stop_at = at;
    ItTraining training = ItTraining::create(engine(), optimizer, config(4, 2));
    training.add_callback(first);
    training.add_callback(second);
    while (step(training, 1)) {
    }
    training.finish();
    const std::string expected = at == 'b'   ? "1b2b1t2t"
                                 : at == 'E' ? "1b2b1E2E1t2t"
                                 : at == 's' ? "1b2b1E2E1s2s1t2t"
                                             : "1b2b1E2E1s2s1s2s1e2e1t2t";
    EXPECT_EQ(log, expected);
    EXPECT_EQ(training.snapshot().step_count, at == 's' ? 1u : at == 'e' ? 2u : 0u);
  }
}

TEST_F(TrainingTest, AnErrorEndsTheTraining) {
  for (const char at : {'b', 'E', 's', 'e'}) {
    std::string log;
    Recorder first(log, "1"), second(log, "2");
    first.throw_at = at;
    ItTraining training = ItTraining::create(engine(), optimizer, config(4, 1));
    training.add_callback(first);
    training.add_callback(second);
    EXPECT_THROW(step(training, 1), Error);
    EXPECT_TRUE(log.ends_with(std::string("1") + at)) << "the others of a boundary run on: " << log;
    EXPECT_FALSE(training.begin_step());
    training.finish();
    EXPECT_EQ(log.find('t'), std::string::npos);
  }
}

TEST_F(TrainingTest, AStopFromOutsideCountsBeforeTheNextStep) {
  ItTraining training = ItTraining::create(engine(), optimizer, config(4));
  ASSERT_TRUE(training.begin_step());
  training.request_stop();
  EXPECT_TRUE(training.begin_step()) << "the open step";
  training.complete_step(matrix::ones(engine(), {}));
  EXPECT_FALSE(training.begin_step());
  EXPECT_EQ(training.finish().step_count, 1u);
}

TEST_F(TrainingTest, RegistrationEndsWithTheFirstStep) {
  std::string log;
  Recorder r(log);
  LossMetric metric;
  ItTraining training = ItTraining::create(engine(), optimizer, config(4));
  ASSERT_TRUE(step(training, 1));
  EXPECT_EQ(error_of([&] { training.add_callback(r); }, ErrorKind::FailedPrecondition),
            "add_callback: the training has begun already");
  error_of([&] { training.add_metric(metric); }, ErrorKind::FailedPrecondition);
  error_of([&] { training.load_state("{}"); }, ErrorKind::FailedPrecondition);
}

TEST_F(TrainingTest, SumsTimesAndRates) {
  ItTrainingConfig c = config(4, 2);
  c.batch_size = 8;
  c.sequence_length = 16;
  c.source_units_per_sample = 2.6;
  LossMetric mean, last("last", LossAggregation::Last);
  ItTraining training = ItTraining::create(engine(), optimizer, c);
  training.add_metric(mean);
  training.add_metric(last);
  ASSERT_TRUE(step(training, 3, 2));
  ASSERT_TRUE(training.begin_step());
  clock.now += 5;
  training.exclude_wall_time(3);
  training.record_source_units(100);
  training.complete_step(Matrix::from_f32(engine(), {}, std::array{1.0f}));
  TrainingSnapshot s = training.snapshot();
  EXPECT_EQ(s.elapsed, 4);
  EXPECT_EQ(s.epoch_elapsed, 4);
  EXPECT_EQ(s.total_samples, 16u);
  EXPECT_EQ(s.total_units, 256u);
  EXPECT_EQ(s.total_source_units, 121u) << "round(8 * 2.6) + 100";
  EXPECT_EQ(s.wall_ms_per_step, 2000);
  EXPECT_EQ(s.wall_samples_per_second, 4);
  EXPECT_EQ(s.wall_units_per_second, 64);
  EXPECT_EQ(s.training_mean_loss, 2);
  EXPECT_EQ(s.epoch_mean_loss, 2);
  EXPECT_EQ(s.gpu_samples_per_second, 0);
  EXPECT_FALSE(s.gpu_timing_stats);
  EXPECT_EQ(mean.result(), 2);
  EXPECT_EQ(last.result(), 1);
  ASSERT_TRUE(step(training, 5, 1));
  s = training.snapshot();
  EXPECT_EQ(s.epoch_elapsed, 1);
  EXPECT_EQ(s.epoch_mean_loss, 5);
  EXPECT_EQ(s.training_mean_loss, 3);
  EXPECT_EQ(s.epoch_source_units_per_second, 21);
  EXPECT_EQ(mean.count(), 1u) << "metrics start over with an epoch";
  EXPECT_EQ(error_of([&] { training.record_source_units(1); }, ErrorKind::FailedPrecondition),
            "record_source_units: no step is open");
  EXPECT_EQ(error_of([&] { training.exclude_wall_time(-1); }, ErrorKind::InvalidArgument),
            "exclude_wall_time: seconds, got -1, expected a finite number of 0 or more");
}

TEST_F(TrainingTest, DeviceTimes) {
  ItTrainingConfig c = config(3);
  c.enable_gpu_timing = true;
  ItTraining training = ItTraining::create(engine(), optimizer, c);
  const Matrix x = matrix::ones(engine(), {64});
  while (training.step(
      {}, [&] { return x.add(x).reshape({1, 64}).mat_mul(x.reshape({64, 1})).reshape({}); })) {
  }
  const auto stats = training.gpu_timing_stats();
  ASSERT_TRUE(stats);
  EXPECT_EQ(stats->count, 3u);
  EXPECT_GT(stats->min_ms, 0);
  EXPECT_LE(stats->min_ms, stats->median_ms);
  EXPECT_LE(stats->median_ms, stats->p95_ms);
  EXPECT_LE(stats->p95_ms, stats->max_ms);
  EXPECT_GT(training.snapshot().gpu_samples_per_second, 0);
}

TEST(GpuTimesTest, PercentilesAreLinearAndTheWindowMoves) {
  EXPECT_EQ(percentile({7}, 0.95), 7);
  EXPECT_DOUBLE_EQ(percentile({1, 2, 3, 4}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20}, 0.95), 19);
  GpuTimes times;
  for (int i = 0; i < 5000; ++i) times.add(i < 904 ? 1.0 : 2.0);
  EXPECT_EQ(times.stats().count, 5000u);
  EXPECT_EQ(times.stats().min_ms, 1000) << "of all steps";
  EXPECT_EQ(times.stats().median_ms, 2000);
  times.add(4);
  EXPECT_EQ(times.stats().last_ms, 4000);
  EXPECT_EQ(times.stats().max_ms, 4000);
}

TEST_F(TrainingTest, ExcludedTimeAtABoundaryDoesNotShortenWhatWasBefore) {
  Validation validation([&](const TrainingSnapshot&) {
    clock.now += 50;
    return ValidationResult{0.5, 1, 1};
  });
  std::string log;
  Recorder r(log);
  ItTraining training = ItTraining::create(engine(), optimizer, config(4, 2));
  training.add_callback(validation);
  training.add_callback(r);
  step(training, 1, 1);
  step(training, 1, 1);
  EXPECT_EQ(validation.last_duration(), 50);
  EXPECT_EQ(r.last.elapsed, 2);
  EXPECT_EQ(training.snapshot().elapsed, 2);
  step(training, 1, 1);
  EXPECT_EQ(training.snapshot().elapsed, 3);
  EXPECT_EQ(training.snapshot().epoch_elapsed, 1);
}

TEST_F(TrainingTest, StateContinuesMeansInsideAnEpoch) {
  ItTraining straight = ItTraining::create(engine(), optimizer, config(6, 3));
  std::string state;
  for (int i = 1; i <= 5; ++i) {
    step(straight, 1.0 / i);
    if (i == 2) state = straight.save_state();
  }
  ItTraining resumed = ItTraining::create(engine(), optimizer, config(6, 3, 2));
  resumed.load_state(state);
  EXPECT_EQ(resumed.snapshot().last_loss, straight.snapshot().last_loss ? 0.5 : -1);
  step(resumed, 1.0 / 3);
  EXPECT_EQ(resumed.snapshot().epoch_mean_loss,
            (1.0 + 0.5 + static_cast<f64>(static_cast<f32>(1.0 / 3))) / 3);
  step(resumed, 1.0 / 4);
  step(resumed, 1.0 / 5);
  EXPECT_EQ(resumed.snapshot().epoch_mean_loss, straight.snapshot().epoch_mean_loss);
  EXPECT_EQ(resumed.snapshot().training_mean_loss, straight.snapshot().training_mean_loss);
  EXPECT_EQ(resumed.save_state(), straight.save_state());
}

TEST_F(TrainingTest, NonFiniteLossesSurviveTheState) {
  ItTraining a = ItTraining::create(engine(), optimizer, config(6));
  step(a, std::nan(""));
  ItTraining b = ItTraining::create(engine(), optimizer, config(6, 0, 1));
  b.load_state(a.save_state());
  EXPECT_TRUE(std::isnan(b.snapshot().training_mean_loss));
}

TEST_F(TrainingTest, WrongStatesAreRefused) {
  ItTraining a = ItTraining::create(engine(), optimizer, config(6));
  step(a, 1);
  const std::string state = a.save_state();
  ItTraining b = ItTraining::create(engine(), optimizer, config(6));
  EXPECT_EQ(error_of([&] { b.load_state(state); }, ErrorKind::InvalidArgument),
            "load_state: step of the state, got 1, expected initial_step 0");
  for (size_t cut = 0; cut < state.size(); ++cut) {
    error_of([&] { b.load_state(std::string_view(state).substr(0, cut)); }, ErrorKind::DataLoss);
  }
  EXPECT_EQ(error_of([&] { b.load_state(R"({"version":2})"); }, ErrorKind::DataLoss),
            "load_state: state \"version\", got 2, expected 1");
  ASSERT_TRUE(a.begin_step());
  EXPECT_EQ(error_of([&] { a.save_state(); }, ErrorKind::FailedPrecondition),
            "save_state: a step is open");
}

TEST_F(TrainingTest, EagerTrainingsGiveNoCheckpoints) {
  struct Asks final : TrainingCallback {
    TrainingControl on_step_end(const TrainingCallbackContext& c) override {
      c.checkpoint_optimizer().step_count();
      return TrainingControl::Continue;
    }
  } asks;
  ItTraining eager = ItTraining::create_eager(engine(), optimizer, config(1));
  eager.add_callback(asks);
  EXPECT_EQ(error_of([&] { step(eager, 1); }, ErrorKind::FailedPrecondition),
            "checkpoint_optimizer: the training was made by create_eager, which gives no access to "
            "checkpoints");
  ItTraining other = ItTraining::create_eager_checkpointable(engine(), optimizer, config(1));
  other.add_callback(asks);
  EXPECT_TRUE(step(other, 1));
}

struct Ramp final : ml::LrScheduler {
  f64 rate(u64 step) const override { return 0.025 * static_cast<f64>(step + 1); }
};

TEST_F(TrainingTest, TheFirstStepHasTheFirstRate) {
  LearningRateScheduler scheduler(std::make_shared<Ramp>());
  std::vector<f64> used;
  ItTraining training = ItTraining::create(engine(), optimizer, config(4));
  training.add_callback(scheduler);
  while (training.begin_step()) {
    used.push_back(optimizer.rate);
    training.complete_step(matrix::ones(engine(), {}));
  }
  EXPECT_EQ(used, (std::vector<f64>{0.025, 0.025 * 2, 0.025 * 3, 0.025 * 4}));
  ItTraining resumed = ItTraining::create(engine(), optimizer, config(4, 0, 2));
  resumed.add_callback(scheduler);
  ASSERT_TRUE(resumed.begin_step());
  EXPECT_EQ(optimizer.rate, 0.025 * 3);
}

TEST_F(TrainingTest, PhasesBeginWhereTheySay) {
  PhaseSchedule phases;
  phases.add_phase("warm", 1, 2).add_phase("main", 2, 5);
  std::string log;
  phases.set_on_phase_begin([&](u64 index, const TrainingPhase& phase, const PhaseOptimizer& o) {
    log += fmt::format("{}:{}@{} ", index, phase.id, o.step_count());
    o.set_learning_rate(0.5);
  });
  EXPECT_EQ(phases.epoch_steps(), (std::vector<u64>{2, 3, 2}));
  ItTrainingConfig c = config(0);
  c.epoch_steps = phases.epoch_steps();
  {
    ItTraining training = ItTraining::create(engine(), optimizer, c);
    training.add_callback(phases);
    while (step(training, 1)) {
    }
    EXPECT_EQ(log, "0:warm@0 1:main@2 ");
    EXPECT_EQ(optimizer.rate, 0.5);
    EXPECT_EQ(phases.current_phase()->id, "main");
  }
  log.clear();
  c.initial_step = 6;
  optimizer.steps = 6;
  PhaseSchedule fresh;
  fresh.add_phase("warm", 1, 2).add_phase("main", 2, 5);
  fresh.set_on_phase_begin([&](u64 index, const TrainingPhase& phase, const PhaseOptimizer&) {
    log += fmt::format("{}:{} ", index, phase.id);
  });
  ItTraining resumed = ItTraining::create(engine(), optimizer, c);
  resumed.add_callback(fresh);
  step(resumed, 1);
  EXPECT_EQ(log, "1:main ");
}

TEST_F(TrainingTest, PhasesMustFit) {
  PhaseSchedule phases;
  EXPECT_EQ(error_of([&] { phases.add_phase("x", 0, 1); }, ErrorKind::InvalidArgument),
            "PhaseSchedule: epochs of phase x, got 0, expected 1 or more");
  EXPECT_EQ(error_of([&] { phases.add_phase("x", 3, 2); }, ErrorKind::InvalidArgument),
            "PhaseSchedule: steps of phase x, got 2, expected at least its 3 epochs");
  phases.add_phase("a", 1, 10).add_phase("b", 2, 30);
  ItTraining wrong = ItTraining::create(engine(), optimizer, config(30, 10));
  wrong.add_callback(phases);
  EXPECT_EQ(error_of([&] { wrong.begin_step(); }, ErrorKind::FailedPrecondition),
            "PhaseSchedule: the training has 3 epochs and 30 steps, expected the phases' 3 and 40");
  ItTraining uneven = ItTraining::create(engine(), optimizer, config(40, 14));
  uneven.add_callback(phases);
  EXPECT_EQ(error_of([&] { uneven.begin_step(); }, ErrorKind::FailedPrecondition),
            "PhaseSchedule: phase a ends at step 10, which is not the end of epoch 1");
}

}  // namespace
}  // namespace oa::test
