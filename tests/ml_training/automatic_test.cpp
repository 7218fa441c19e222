// Steps of a loop that become programs by themselves: the bits are those of recorded steps, and
// what changes is recorded anew or never captured.
#include "oa/ml/training/it_training.h"
#include "oa/ml/training/learning_rate_scheduler.h"
#include "support.h"

namespace oa::test {
namespace {

using ml::training::ItTraining;
using ml::training::ItTrainingConfig;
using ml::training::StepRecord;

class Automatic : public testing::Test {
 protected:
  Engine& engine() { return *open_device("cpu").engine; }

  struct Run {
    Bits bits;        // losses, then parameters
    u32 records = 0;  // calls of `record`
    u64 fallbacks = 0;
    std::string why;
  };
  enum class Inputs { Written, Made };
  // 40 steps, with an average after each and validation in between. `batch_of` says how many rows
  // step t has.
  Run train(bool automatic, Inputs inputs, const std::function<i64(u32)>& batch_of,
            const OptimizerKind& kind = optimizer_kinds()[3]) {
    Net net(engine());
    const auto optimizer = kind.make(net.all_parameters());
    auto& checkpointable = dynamic_cast<ml::CheckpointOptimizer&>(*optimizer);
    ml::ExponentialMovingAverage average(net, 0.9);
    const auto rates = std::make_shared<ml::CosineScheduler>(0.1, 0.001, 40);
    ml::training::LearningRateScheduler scheduler(rates);
    ItTrainingConfig config{.total_steps = 40};
    ItTraining training =
        automatic ? ItTraining::create(engine(), checkpointable, config)
                  : ItTraining::create_eager_checkpointable(engine(), checkpointable, config);
    training.add_callback(scheduler);
    Matrix x = Matrix::from_f32(engine(), {4, 6}, inputs_of(0));
    Matrix y = Matrix::from_slice<u32>(engine(), {4}, targets_of(0));
    Run run;
    u32 t = 0;
    while (training.step(
        [&] {
          const auto rows = static_cast<size_t>(batch_of(t));
          const std::vector<f32> in = inputs_of(t, 6 * rows);
          const std::vector<u32> out = targets_of(t, rows);
          if (inputs == Inputs::Written) {
            x.write<f32>(in);
            y.write<u32>(out);
          } else {
            x = Matrix::from_f32(engine(), {static_cast<i64>(rows), 6}, in);
            y = Matrix::from_slice<u32>(engine(), {static_cast<i64>(rows)}, out);
          }
          ++t;
        },
        [&]() -> StepRecord {
          ++run.records;
          ml::GradientTape tape;
          const Matrix loss = ml::loss::cross_entropy(net.forward(x), y);
          tape.backward(loss);
          const Parameters parameters = net.all_parameters();
          return {loss, ml::clip_grad_norm(std::span<const ml::Parameter>(parameters), 0.5),
                  [&] { average.update(); }};
        })) {
      run.bits.push_back(std::bit_cast<u32>(static_cast<f32>(*training.snapshot().last_loss)));
      if (t % 8 == 0) {  // validation uses the same engine in between
        const ml::NoGrad quiet;
        const ml::ScopedEval eval = net.scoped_eval();
        add_bits(run.bits, ml::loss::cross_entropy(net.forward(x), y));
      }
    }
    EXPECT_EQ(optimizer->step_count(), 40u);
    for (const ml::Parameter& p : net.all_parameters()) add_bits(run.bits, p.data());
    for (const Matrix& m : average.averages()) add_bits(run.bits, m);
    run.fallbacks = training.program_capture_fallback_count();
    run.why = training.last_program_capture_fallback().value_or("");
    return run;
  }
};

TEST_F(Automatic, BitsOfRecordedStepsForEveryOptimizer) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    if (std::string_view(kind.name) == "NoOp") continue;
    const auto four = [](u32) { return 4; };
    const Run eager = train(false, Inputs::Written, four, kind);
    const Run replayed = train(true, Inputs::Written, four, kind);
    EXPECT_EQ(eager.bits, replayed.bits) << kind.name;
    EXPECT_EQ(eager.records, 40u) << kind.name;
    EXPECT_EQ(replayed.records, 2u) << kind.name;
    EXPECT_EQ(replayed.fallbacks, 0u) << replayed.why;
  }
}

TEST_F(Automatic, InputsMadeAnewTakeTheirPlaces) {
  const auto four = [](u32) { return 4; };
  const Run eager = train(false, Inputs::Made, four), replayed = train(true, Inputs::Made, four);
  EXPECT_EQ(eager.bits, replayed.bits);
  EXPECT_EQ(replayed.records, 2u);
}

// Every fifth batch is a short one.
TEST_F(Automatic, EveryShapeHasItsProgram) {
  const auto rows = [](u32 t) { return t % 5 == 4 ? 2 : 4; };
  const Run eager = train(false, Inputs::Made, rows), replayed = train(true, Inputs::Made, rows);
  EXPECT_EQ(eager.bits, replayed.bits);
  EXPECT_EQ(replayed.records, 4u);
  // More shapes than are kept: still right, recorded each time.
  const auto many = [](u32 t) { return 1 + t % 7; };
  const Run all = train(false, Inputs::Made, many), lost = train(true, Inputs::Made, many);
  EXPECT_EQ(all.bits, lost.bits);
  EXPECT_EQ(lost.records, 40u);
}

// A parameter and steps on it by the number of the step.
class Loop : public Automatic {
 protected:
  void SetUp() override {
    p = ml::Parameter::create("p", Matrix::from_f32(engine(), {3}, std::vector<f32>{1, 2, 3}));
    x = Matrix::from_f32(engine(), {3}, std::vector<f32>{0, 1, 0});
  }
  Matrix pull(const Matrix& to, f64 by = 1) const {
    ml::GradientTape tape;
    const Matrix loss = matrix::mean(matrix::square(p.data() - to)) * by;
    tape.backward(loss);
    return loss;
  }
  // Runs `steps` steps of a loop of its own, captured and not, and compares the parameter.
  std::unique_ptr<ItTraining> same(u32 steps, const std::function<StepRecord(u32)>& record) {
    std::vector<f32> ends[2];
    std::unique_ptr<ItTraining> last;
    for (const bool automatic : {false, true}) {
      SetUp();
      o = std::make_unique<ml::AdamW>(Parameters{p}, 0.1, 0.1);
      ItTrainingConfig config{.total_steps = steps};
      last.reset(automatic ? new ItTraining(ItTraining::create(engine(), *o, config))
                           : new ItTraining(
                                 ItTraining::create_eager_checkpointable(engine(), *o, config)));
      calls = 0;
      u32 t = 0;
      while (last->step({}, [&] {
        ++calls;
        return record(t);
      })) {
        ++t;
        if (between) between(*last, t);
      }
      ends[automatic] = p.data().read_f32();
    }
    EXPECT_EQ(ends[0], ends[1]);
    return last;
  }
  static std::string why(const ItTraining& t) {
    return t.last_program_capture_fallback().value_or("");
  }

  ml::Parameter p;
  Matrix x;
  std::unique_ptr<ml::AdamW> o;
  u32 calls = 0;
  std::function<void(ItTraining&, u32)> between;
};

TEST_F(Loop, WhatChangesOnTheHostIsNeverFrozen) {
  auto t = same(10, [&](u32 step) { return pull(x, 1.0 / (1 + step)); });
  EXPECT_EQ(calls, 10u);
  EXPECT_EQ(t->program_capture_fallback_count(), 1u);
  EXPECT_EQ(why(*t),
            "scale: number 0 comes from the host, differs each time the step is recorded, and a "
            "replay would repeat it, got 0.3333333333333333 after 0.5, expected a value in device "
            "memory");
  EXPECT_EQ(t->training_program(), nullptr);

  const std::vector<Matrix> resident = {Matrix::from_f32(engine(), {3}, std::vector<f32>{1, 1, 1}),
                                        Matrix::from_f32(engine(), {3}, std::vector<f32>{4, 4, 4})};
  t = same(10, [&](u32 step) { return pull(resident[step % 2]); });
  EXPECT_EQ(why(*t),
            "sub: operand 1 is another value each time the step is recorded and a replay would use "
            "the old one, expected one value whose elements are replaced");

  t = same(10, [&](u32 step) {
    return pull(Matrix::from_f32(engine(), {3}, std::vector<f32>(3, static_cast<f32>(step))));
  });
  EXPECT_EQ(why(*t),
            "sub: operand 1 was uploaded while the step was recorded and a replay would use the "
            "same elements, expected a value made before");

  t = same(10, [&](u32) { return pull(x, static_cast<f64>(p.data().read_f32()[0])); });
  EXPECT_EQ(why(*t),
            "read: the host would see the same elements at each replay, expected the value itself");

  t = same(10, [&](u32) {
    const f32 mean = matrix::mean(p.data() * 2.0).item();
    return pull(x, static_cast<f64>(mean));
  });
  EXPECT_EQ(why(*t), "read: a value of a capture has no elements before submit()");

  t = same(10, [&](u32 step) {
    x.write<f32>(std::vector<f32>(3, static_cast<f32>(step)));
    return pull(x);
  });
  EXPECT_EQ(why(*t), "write: elements cannot be replaced during a capture");

  t = same(10, [&](u32 step) {
    o->set_learning_rate(0.1 / (1 + step));
    return pull(x);
  });
  EXPECT_EQ(why(*t),
            "AdamW: set_learning_rate during a capture would repeat at each replay, expected it "
            "between submissions");

  t = same(10, [&](u32) {
    const Matrix loss = pull(x);
    engine().flush();
    return loss;
  });
  EXPECT_EQ(why(*t), "flush: the step ran in parts, expected one batch without a flush in between");
}

TEST_F(Loop, ASeedOfTheEngineIsNeverFrozen) {
  Engine& e = engine();
  for (const bool automatic : {false, true}) {
    e.set_rng_seed(7);
    SetUp();
    ml::Sgd sgd({p}, 0.1);
    ItTraining t = automatic ? ItTraining::create(e, sgd, {.total_steps = 8})
                             : ItTraining::create_eager(e, sgd, {.total_steps = 8});
    std::vector<f64> losses;
    while (t.step({}, [&] { return pull(matrix::uniform(e, {3})); })) {
      losses.push_back(*t.snapshot().last_loss);
    }
    static std::vector<f64> first;
    if (!automatic) first = losses;
    EXPECT_EQ(losses, first);
    if (automatic) {
      EXPECT_EQ(why(t),
                "philox_uniform: a captured program would repeat a value drawn on the host at each "
                "replay, expected the form that takes its counter from device memory");
    }
  }
}

// Step 1 makes a constant, so that only steps 2 and 3 are equal.
TEST_F(Loop, AFirstStepMayBeAnother) {
  Matrix constant;
  const auto t = same(10, [&](u32 step) {
    if (step == 0) constant = matrix::square(x);
    return pull(constant);
  });
  EXPECT_EQ(calls, 3u);
  EXPECT_EQ(t->program_capture_fallback_count(), 0u) << why(*t);
  ASSERT_NE(t->training_program(), nullptr);
  EXPECT_EQ(t->training_program()->replay_count(), 8u);
}

TEST_F(Loop, OtherHyperparametersAreCapturedAnew) {
  between = [&](ItTraining&, u32 t) {
    if (t != 5) return;
    ml::OptimizerState s = o->checkpoint_state();
    s.beta1 = 0.5f;
    o->restore_checkpoint_state(s);
  };
  same(12, [&](u32) { return pull(x); });
  EXPECT_EQ(calls, 4u);
}

TEST_F(Loop, ARecaptureMayBeAskedFor) {
  // What `record` does depends on the host, which no program sees.
  between = [&](ItTraining& t, u32 step) {
    if (step == 6 && t.training_program()) t.request_program_recapture();
  };
  const auto t = same(12, [&](u32 step) { return pull(x, step >= 6 ? 3 : 1); });
  EXPECT_EQ(calls, 4u);
  EXPECT_EQ(t->training_program()->replay_count(), 5u);
}

TEST_F(Loop, OneWayOfMakingSteps) {
  o = std::make_unique<ml::AdamW>(Parameters{p}, 0.1);
  const auto record = [&]() -> StepRecord { return pull(x); };
  const auto program = [&] { return ml::TrainingProgram::capture(engine(), *o, record); };
  {
    ItTraining t = ItTraining::create(engine(), *o, {.total_steps = 9});
    EXPECT_EQ(error_of([&] { t.seal_replay_inputs(); }), "seal_replay_inputs: no step is open");
    ASSERT_TRUE(t.begin_step());
    t.seal_replay_inputs();
    EXPECT_EQ(error_of([&] { t.seal_replay_inputs(); }),
              "seal_replay_inputs: the inputs of this step are sealed already");
    t.zero_grad();
    t.complete_step(pull(x));
    EXPECT_EQ(error_of([&] { t.step({}, record); }),
              "step: the training makes its steps in another way, got step after complete_step, "
              "expected one way for all");
    ASSERT_TRUE(t.begin_step());
    auto own = program();
    EXPECT_EQ(error_of([&] { t.complete_program_step(own); }),
              "complete_program_step: the training makes its steps in another way, got "
              "complete_program_step after complete_step, expected one way for all");
    EXPECT_EQ(error_of([&] { t.request_program_recapture(); }),
              "request_program_recapture: the training does not capture, expected one by create() "
              "with step()");
  }
  {
    ItTraining t = ItTraining::create(engine(), *o, {.total_steps = 2});
    auto own = program();
    EXPECT_EQ(error_of([&] { t.complete_program_step(own); }),
              "complete_program_step: no step is open");
    ml::AdamW stranger({p}, 0.1);
    auto strange = ml::TrainingProgram::capture(engine(), stranger, record);
    while (t.begin_step()) {
      EXPECT_EQ(error_of([&] { t.complete_program_step(strange); }),
                "complete_program_step: the program has another optimizer, expected the "
                "training's");
      t.complete_program_step(own);
    }
    EXPECT_EQ(own.replay_count(), 2u);
    EXPECT_EQ(t.snapshot().step_count, 2u);
    EXPECT_EQ(*t.snapshot().last_loss, static_cast<f64>(own.loss().item()));
  }
  {
    ItTraining t = ItTraining::create_eager(engine(), *o, {.total_steps = 2});
    EXPECT_EQ(error_of([&] { t.request_program_recapture(); }),
              "request_program_recapture: the training does not capture, expected one by create() "
              "with step()");
    EXPECT_EQ(t.training_program(), nullptr);
    EXPECT_EQ(t.program_capture_fallback_count(), 0u);
    EXPECT_FALSE(t.last_program_capture_fallback());
  }
}

TEST_F(Loop, AnErrorOfPrepareLeavesTheEngineAsItWas) {
  o = std::make_unique<ml::AdamW>(Parameters{p}, 0.1);
  {
    ItTraining t = ItTraining::create(engine(), *o, {.total_steps = 9});
    EXPECT_THROW(t.step([] { throw std::runtime_error("stop"); }, [&] { return pull(x); }),
                 std::runtime_error);
    EXPECT_TRUE(t.stop_requested());
    EXPECT_EQ(Matrix::from_f32(engine(), {1}, std::vector<f32>{4}).item(), 4);
  }
  {
    ItTraining t = ItTraining::create(engine(), *o, {.total_steps = 9});
    EXPECT_THROW(t.step({}, []() -> StepRecord { throw std::runtime_error("stop"); }),
                 std::runtime_error);
    EXPECT_FALSE(t.begin_step());
  }
  o->zero_grad();
  pull(x);
  o->step();
  engine().wait();
}

TEST_F(Loop, TimesOfReplays) {
  o = std::make_unique<ml::AdamW>(Parameters{p}, 0.1);
  ItTraining t = ItTraining::create(engine(), *o, {.total_steps = 6, .enable_gpu_timing = true});
  while (t.step({}, [&] { return pull(x); })) {
  }
  ASSERT_TRUE(t.gpu_timing_stats());
  EXPECT_EQ(t.gpu_timing_stats()->count, 6u);
  EXPECT_EQ(t.training_program()->diagnostics().timed_replays, 5u);
}

}  // namespace
}  // namespace oa::test
