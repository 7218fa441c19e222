// Replays of a captured step against steps recorded one by one, bit for bit; what a capture
// refuses.
#include "support.h"

namespace oa::test {
namespace {

using ml::training::StepRecord;

class Program : public OnDevice {
 protected:
  struct End {
    Bits parameters, moments, averages, losses, norms;
    u64 steps = 0;
    i64 device_step = 0;
    f64 rate = 0;
    bool operator==(const End&) const = default;
  };

  // `steps` steps with a cosine schedule, dropout, clipping with its guard and an average; in step
  // `bad` the input is not finite.
  End train(const OptimizerKind& kind, bool captured, u32 steps, u32 bad = ~0u) {
    Net net(engine());
    const Parameters parameters = net.all_parameters();
    const auto optimizer = kind.make(parameters);
    ml::ExponentialMovingAverage average(net, 0.9);
    const auto schedule = std::make_shared<ml::CosineScheduler>(0.1, 0.001, steps);
    const Matrix x = from<f32>({4, 6}, inputs_of(0));
    const Matrix y = from<u32>({4}, targets_of(0));
    const bool none = std::string_view(kind.name) == "NoOp";
    Matrix norm = matrix::zeros(engine(), {});
    engine().flush();
    const auto record = [&]() -> StepRecord {
      if (none) {
        for (const ml::Parameter& p : parameters) p.clear_gradient();
      }
      ml::GradientTape tape;
      const Matrix loss = ml::loss::cross_entropy(net.forward(x), y);
      tape.backward(loss);
      const Matrix guard = ml::clip_grad_norm(std::span<const ml::Parameter>(parameters), 0.5);
      norm.assign(guard.reshape({}));
      if (none) {  // the step updates by itself
        for (const ml::Parameter& p : parameters) {
          p.replace_data(p.data() * 0.99 - *p.gradient() * 0.05);
        }
      }
      return {loss, guard, [&] { average.update(); }};
    };
    End end;
    std::optional<ml::TrainingProgram> program;
    if (captured) {
      optimizer->follow_schedule(schedule, 0);
      program = ml::TrainingProgram::capture(engine(), *optimizer, record);
      EXPECT_EQ(optimizer->step_count(), 0u);
    }
    for (u32 t = 0; t < steps; ++t) {
      std::vector<f32> in = inputs_of(t);
      if (t == bad) in[3] = std::numeric_limits<f32>::quiet_NaN();
      if (captured) {
        program->upload_input(x, in);
        program->upload_input(y, targets_of(t));
        if (t % 10 == 9) {
          end.losses.push_back(std::bit_cast<u32>(program->replay_and_wait()));
        } else if (t % 10 == 4 && std::string_view(GetParam()) == "cpu") {
          end.losses.push_back(std::bit_cast<u32>(program->replay_timed_and_wait().loss));
        } else {
          program->replay();
          add_bits(end.losses, program->loss());
        }
      } else {
        x.write<f32>(in);
        y.write<u32>(targets_of(t));
        optimizer->set_learning_rate(schedule->rate(t));
        optimizer->zero_grad();
        const StepRecord r = record();
        ml::training::record_update(*optimizer, r);
        engine().flush();
        add_bits(end.losses, r.loss);
      }
      add_bits(end.norms, norm);
    }
    for (const ml::Parameter& p : parameters) add_bits(end.parameters, p.data());
    for (const Matrix& m : average.averages()) add_bits(end.averages, m);
    end.steps = optimizer->step_count();
    end.rate = optimizer->learning_rate();
    if (auto* c = dynamic_cast<ml::CheckpointOptimizer*>(optimizer.get())) {
      const ml::OptimizerState state = c->checkpoint_state();
      end.device_step = state.step;
      for (const auto* list : {&state.first_moment, &state.second_moment}) {
        for (const f32 m : *list) end.moments.push_back(std::bit_cast<u32>(m));
      }
    }
    if (captured) {
      EXPECT_EQ(program->replay_count(), steps);
      EXPECT_TRUE(program->is_complete());
    }
    return end;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, Program, testing::Values("cpu", "lavapipe"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(Program, AHundredReplaysAreAHundredSteps) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    const bool none = std::string_view(kind.name) == "NoOp";
    const End recorded = train(kind, false, 100), replayed = train(kind, true, 100);
    EXPECT_EQ(recorded.losses, replayed.losses) << kind.name;
    EXPECT_EQ(recorded.norms, replayed.norms) << kind.name;
    EXPECT_EQ(recorded.parameters, replayed.parameters) << kind.name;
    EXPECT_EQ(recorded.moments, replayed.moments) << kind.name;
    EXPECT_EQ(recorded.averages, replayed.averages) << kind.name;
    EXPECT_EQ(replayed.steps, none ? 0u : 100u) << kind.name;
    EXPECT_EQ(replayed.device_step, none ? 0 : 100) << kind.name;
    // Something happens, and dropout draws anew: losses of equal data would repeat otherwise.
    EXPECT_NE(replayed.losses.front(), replayed.losses.back()) << kind.name;
  }
}

TEST_P(Program, AStepThatIsNotFiniteChangesNothingButTheTurn) {
  const OptimizerKind& adamw = optimizer_kinds()[3];
  const End recorded = train(adamw, false, 12, 5), replayed = train(adamw, true, 12, 5);
  EXPECT_EQ(recorded.parameters, replayed.parameters);
  EXPECT_EQ(recorded.moments, replayed.moments);
  EXPECT_EQ(replayed.device_step, 11);
  EXPECT_EQ(replayed.steps, 12u);
}

// --- On the CPU only: nothing of a device in them ---

class ProgramCpu : public testing::Test {
 protected:
  Engine& engine() { return *open_device("cpu").engine; }
  // A parameter, a constant input, and a step that pulls one to the other.
  struct Pull {
    explicit Pull(const Engine& e)
        : p(ml::Parameter::create("p", Matrix::from_f32(e, {3}, std::vector<f32>{1, 2, 3}))),
          x(Matrix::from_f32(e, {3}, std::vector<f32>{0, 1, 0})) {}
    Matrix step() const {
      ml::GradientTape tape;
      const Matrix loss = matrix::mean(matrix::square(p.data() - x));
      tape.backward(loss);
      return loss;
    }
    ml::Parameter p;
    Matrix x;
  };
  std::string refusal(ml::Optimizer& o, const ml::training::StepFn& step) {
    return error_of([&] { ml::TrainingProgram::capture(engine(), o, step); });
  }
};

TEST_F(ProgramCpu, RatesAreLaidDownAsFarAsReplaysGo) {
  constexpr u32 kSteps = 900;  // several times what lies in device memory
  const auto schedule = std::make_shared<ml::CosineScheduler>(0.01, 0, kSteps);
  std::vector<std::vector<f32>> ends;
  for (const int way : {0, 1, 2, 3}) {
    const Pull pull(engine());
    ml::Sgd o({pull.p}, 0.5, 0.9);
    if (way > 0) o.follow_schedule(schedule, 0);
    std::optional<ml::TrainingProgram> program;
    if (way > 1) program = ml::TrainingProgram::capture(engine(), o, [&] { return pull.step(); });
    for (u32 t = 0; t < kSteps; ++t) {
      if (way == 0) o.set_learning_rate(schedule->rate(t));
      if (way > 1 && (way == 2 || t % 7 < 3)) {
        program->replay();
      } else {  // way 3 mixes both
        o.zero_grad();
        pull.step();
        o.step();
        engine().flush();
      }
      EXPECT_EQ(o.learning_rate(), schedule->rate(t));
    }
    ends.push_back(pull.p.data().read_f32());
  }
  for (size_t i = 1; i < ends.size(); ++i) EXPECT_EQ(ends[0], ends[i]) << i;
}

TEST_F(ProgramCpu, ARateSetByHandEndsTheSchedule) {
  std::vector<std::vector<f32>> ends;
  for (const bool captured : {false, true}) {
    const Pull pull(engine());
    ml::AdamW o({pull.p}, 0.5);
    o.follow_schedule(std::make_shared<ml::CosineScheduler>(0.1, 0, 10), 0);
    std::optional<ml::TrainingProgram> program;
    if (captured) program = ml::TrainingProgram::capture(engine(), o, [&] { return pull.step(); });
    for (u32 t = 0; t < 8; ++t) {
      if (t == 3) o.set_learning_rate(0.3);
      if (captured) {
        program->replay();
      } else {
        o.zero_grad();
        pull.step();
        o.step();
      }
      if (t >= 3) {
        EXPECT_EQ(o.learning_rate(), 0.3);
      }
    }
    ends.push_back(pull.p.data().read_f32());
  }
  EXPECT_EQ(ends[0], ends[1]);
}

TEST_F(ProgramCpu, AccumulationOverMicroBatchesIsOneProgram) {
  std::vector<Bits> ends;
  for (const bool captured : {false, true}) {
    Net net(engine());
    ml::AdamW o(net.all_parameters(), 0.05);
    std::vector<Matrix> x, y;
    for (u32 m = 0; m < 4; ++m) {
      x.push_back(Matrix::from_f32(engine(), {4, 6}, inputs_of(m)));
      y.push_back(Matrix::from_slice<u32>(engine(), {4}, targets_of(m)));
    }
    const auto record = [&]() -> StepRecord {
      ml::GradientAccumulation batches(4);
      Matrix sum;
      for (u32 m = 0; m < 4; ++m) {
        ml::GradientTape tape;
        const Matrix loss = batches.scale(ml::loss::cross_entropy(net.forward(x[m]), y[m]));
        tape.backward(loss);
        sum = sum.valid() ? sum + loss : loss;
      }
      return sum;
    };
    std::optional<ml::TrainingProgram> program;
    if (captured) program = ml::TrainingProgram::capture(engine(), o, record);
    Bits bits;
    for (u32 t = 0; t < 20; ++t) {
      for (u32 m = 0; m < 4; ++m) {
        if (captured) {
          program->upload_input(x[m], inputs_of(4 * t + m));
        } else {
          x[m].write<f32>(inputs_of(4 * t + m));
        }
      }
      if (captured) {
        program->replay();
        add_bits(bits, program->loss());
        continue;
      }
      o.zero_grad();
      const StepRecord r = record();
      o.step();
      add_bits(bits, r.loss);
    }
    for (const ml::Parameter& p : net.all_parameters()) add_bits(bits, p.data());
    ends.push_back(bits);
  }
  EXPECT_EQ(ends[0], ends[1]);
}

// The second run of a recomputed part draws the masks of the first, in every replay.
TEST_F(ProgramCpu, RecomputedPartsDrawTheSameMasks) {
  std::vector<Bits> ends;
  for (const bool captured : {false, true}) {
    Net net(engine());
    ml::AdamW o(net.all_parameters(), 0.05);
    const Matrix x = Matrix::from_f32(engine(), {4, 6}, inputs_of(0));
    const Matrix y = Matrix::from_slice<u32>(engine(), {4}, targets_of(0));
    const auto record = [&]() -> StepRecord {
      ml::GradientTape tape;
      const Matrix logits = ml::recompute(
          [&](const std::vector<Matrix>& in) { return std::vector{net.forward(in[0])}; }, {x})[0];
      const Matrix loss = ml::loss::cross_entropy(logits, y);
      tape.backward(loss);
      return loss;
    };
    std::optional<ml::TrainingProgram> program;
    if (captured) program = ml::TrainingProgram::capture(engine(), o, record);
    Bits bits;
    for (u32 t = 0; t < 20; ++t) {
      if (captured) {
        program->replay();
        add_bits(bits, program->loss());
        continue;
      }
      o.zero_grad();
      const StepRecord r = record();
      o.step();
      add_bits(bits, r.loss);
    }
    for (const ml::Parameter& p : net.all_parameters()) add_bits(bits, p.data());
    ends.push_back(bits);
  }
  EXPECT_EQ(ends[0], ends[1]);
}

// The program outlives the handle that it was captured with; a closed engine refuses.
TEST_F(ProgramCpu, EnginesMayMoveAndClose) {
  std::optional<Engine> e(Engine::open({.device = "cpu"}));
  const Pull pull(*e);
  ml::Sgd o({pull.p}, 0.1);
  auto program = ml::TrainingProgram::capture(*e, o, [&] { return pull.step(); });
  Engine moved = std::move(*e);
  e.reset();
  EXPECT_GT(program.replay_and_wait(), 0);
  moved.close();
  EXPECT_EQ(error_of([&] { program.replay(); }),
            "replay: the engine of the operands is closed, expected an open one");
  program.reset();
}

TEST_F(ProgramCpu, RefusesWhatReplaysWouldFreeze) {
  const Pull pull(engine());
  ml::Sgd o({pull.p}, 0.1);
  f64 weight = 0;
  EXPECT_EQ(refusal(o,
                    [&] {
                      weight += 0.5;
                      ml::GradientTape tape;
                      const Matrix loss = matrix::sum(pull.p.data() * weight);
                      tape.backward(loss);
                      return loss;
                    }),
            "scale: number 0 comes from the host, differs each time the step is recorded, and a "
            "replay would repeat it, got 1 after 0.5, expected a value in device memory");
  const auto read = [&] {
    const f32 x = matrix::sum(pull.x).item();
    return pull.step() * static_cast<f64>(x);
  };
  EXPECT_EQ(refusal(o, read), "read: a value of a capture has no elements before submit()");
  EXPECT_EQ(refusal(o,
                    [&] {
                      const f32 x = pull.x.read_f32()[0];
                      return pull.step() + static_cast<f64>(x);
                    }),
            "read: the host would see the same elements at each replay, expected the value itself");
  EXPECT_EQ(refusal(o,
                    [&] {
                      pull.x.write<f32>(std::vector<f32>{1, 1, 1});
                      return pull.step();
                    }),
            "write: elements cannot be replaced during a capture");
  EXPECT_EQ(refusal(o,
                    [&] {
                      o.set_learning_rate(0.2);
                      return pull.step();
                    }),
            "SGD: set_learning_rate during a capture would repeat at each replay, expected it "
            "between submissions");
  EXPECT_EQ(refusal(o,
                    [&] {
                      const Matrix noise = matrix::uniform(engine(), {3});
                      ml::GradientTape tape;
                      const Matrix loss = matrix::sum(pull.p.data() * noise);
                      tape.backward(loss);
                      return loss;
                    }),
            "philox_uniform: a captured program would repeat a value drawn on the host at each "
            "replay, expected the form that takes its counter from device memory");
  EXPECT_EQ(refusal(o,
                    [&] {
                      const Matrix fresh =
                          Matrix::from_f32(engine(), {3}, std::vector<f32>{1, 2, 3});
                      ml::GradientTape tape;
                      const Matrix loss = matrix::sum(matrix::square(pull.p.data() - fresh));
                      tape.backward(loss);
                      return loss;
                    }),
            "sub: operand 1 was uploaded while the step was recorded and a replay would use the "
            "same elements, expected a value made before");
  const Matrix other = Matrix::from_f32(engine(), {3}, std::vector<f32>{5, 5, 5});
  u32 calls = 0;
  EXPECT_EQ(refusal(o,
                    [&] {
                      ml::GradientTape tape;
                      const Matrix loss = matrix::sum(
                          matrix::square(pull.p.data() - (calls++ % 2 == 0 ? pull.x : other)));
                      tape.backward(loss);
                      return loss;
                    }),
            "sub: operand 1 is another value each time the step is recorded and a replay would use "
            "the old one, expected one value whose elements are replaced");
  EXPECT_EQ(refusal(o,
                    [&] {
                      ml::GradientTape tape;
                      const Matrix d = pull.p.data() - pull.x;
                      const Matrix loss =
                          matrix::sum(calls++ % 2 == 0 ? matrix::abs(d) : matrix::square(d));
                      tape.backward(loss);
                      return loss;
                    }),
            "square: the step records other operations each time, got square as operation 1 after "
            "abs, expected the same ones");
  // A state that is carried on in a handle instead of in place.
  Matrix state = other;
  EXPECT_EQ(refusal(o,
                    [&] {
                      state = state * 0.5;
                      return pull.step() + matrix::sum(state);
                    }),
            "scale: operand 0 is a result of the recording before, which no replay would see, "
            "expected a value with elements of its own that assign() replaces");
  EXPECT_EQ(pull.p.data().read_f32(), (std::vector<f32>{1, 2, 3}));
  EXPECT_EQ(o.step_count(), 0u);
  EXPECT_FALSE(pull.p.gradient());
  // Nothing of that is left.
  auto program = ml::TrainingProgram::capture(engine(), o, [&] { return pull.step(); });
  EXPECT_EQ(program.replay_and_wait(), 11.0f / 3);
}

TEST_F(ProgramCpu, ConstantsThatTheFirstCallMakesAreConstants) {
  const Pull pull(engine());
  ml::Sgd o({pull.p}, 0.5);
  Matrix mask;
  auto program = ml::TrainingProgram::capture(engine(), o, [&] {
    if (!mask.valid()) mask = Matrix::from_f32(engine(), {3}, std::vector<f32>{1, 0, 1});
    ml::GradientTape tape;
    const Matrix loss = matrix::sum(pull.p.data() * mask);
    tape.backward(loss);
    return loss;
  });
  program.replay();
  program.wait();
  EXPECT_EQ(pull.p.data().read_f32(), (std::vector<f32>{0.5, 2, 2.5}));
}

TEST_F(ProgramCpu, RefusesWrongSteps) {
  const Pull pull(engine()), second(engine());
  ml::AdamW o({pull.p}, 0.1), stranger({second.p}, 0.1), both({pull.p, second.p}, 0.1);
  EXPECT_EQ(refusal(o, {}), "TrainingProgram: step, got none, expected a function");
  EXPECT_EQ(refusal(o, [] { return Matrix(); }),
            "TrainingProgram: loss, got an empty Matrix, expected one f32 element");
  EXPECT_EQ(refusal(o,
                    [&] {
                      pull.step();
                      return pull.x;
                    }),
            "TrainingProgram: loss, got f32 [3], expected one f32 element");
  EXPECT_EQ(refusal(o, [&] { return StepRecord(pull.step(), pull.x); }),
            "TrainingProgram: guard, got f32 [3], expected one f32 element");
  EXPECT_EQ(refusal(o,
                    [&] {
                      const Matrix loss = pull.step();
                      second.step();
                      stranger.step();
                      return loss;
                    }),
            "TrainingProgram: the step has updates of other optimizers, got 1, expected only the "
            "program's own");
  EXPECT_EQ(refusal(o,
                    [&] {
                      const Matrix loss = pull.step();
                      o.step();
                      o.step();
                      return loss;
                    }),
            "TrainingProgram: the step has the wrong number of the optimizer's updates, got 2, "
            "expected 1");
  EXPECT_EQ(refusal(both, [&] { return pull.step(); }),
            "TrainingProgram: the captured step gives parameter \"p\" no gradient, expected one or "
            "set_requires_grad(false)");
  Engine away = Engine::open({.device = "cpu"});
  EXPECT_EQ(error_of([&] { ml::TrainingProgram::capture(away, o, [&] { return pull.step(); }); }),
            "TrainingProgram: optimizer, got one of another engine, expected one of this engine");
  const Matrix pending = pull.x + pull.x;
  EXPECT_EQ(refusal(o, [&] { return pull.step(); }),
            "TrainingProgram: work is pending, got 1 recorded operations, expected a flush before "
            "the capture");
  engine().flush();
  EXPECT_EQ(refusal(o,
                    [&] {
                      ml::TrainingProgram::capture(engine(), o, [&] { return pull.step(); });
                      return pull.step();
                    }),
            "capture: a capture is under way, expected no nested capture");
  second.p.set_requires_grad(false);  // then it needs none
  auto program = ml::TrainingProgram::capture(engine(), both, [&] { return pull.step(); });
  program.replay_and_wait();
}

TEST_F(ProgramCpu, StepsThatUpdateByThemselvesAreTakenAsTheyAre) {
  const Pull pull(engine());
  ml::Sgd o({pull.p}, 0.5);
  u32 after = 0;
  auto program = ml::TrainingProgram::capture(engine(), o, [&] {
    StepRecord r = pull.step();
    o.step();
    r.after = [&] { ++after; };
    return r;
  });
  EXPECT_EQ(after, 2u) << "once a recording";
  program.replay_and_wait();
  EXPECT_EQ(pull.p.data().read_f32(), (std::vector<f32>{1 - 1.0f / 3, 2 - 1.0f / 3, 2}));
}

TEST_F(ProgramCpu, RefusesReplaysForAnotherOptimizer) {
  const Pull pull(engine());
  auto o = std::make_unique<ml::AdamW>(Parameters{pull.p}, 0.1, 0.1);
  auto program = ml::TrainingProgram::capture(engine(), *o, [&] { return pull.step(); });
  program.replay_and_wait();
  EXPECT_EQ(&program.optimizer(), o.get());
  const ml::OptimizerState state = o->checkpoint_state();
  o->restore_checkpoint_state(state);  // the same numbers: goes on
  program.replay_and_wait();
  const std::string expected =
      "the optimizer has other betas, decays or trained parameters than in the captured step";
  ml::OptimizerState other = state;
  other.beta1 = 0.5f;
  o->restore_checkpoint_state(other);
  EXPECT_EQ(error_of([&] { program.replay(); }),
            "replay: " + expected + ", expected a new capture");
  EXPECT_EQ(program.replay_count(), 2u);
  program = ml::TrainingProgram::capture(engine(), *o, [&] { return pull.step(); });
  program.replay_and_wait();
  pull.p.set_requires_grad(false);
  EXPECT_EQ(error_of([&] { program.replay_timed(); }),
            "replay_timed: " + expected + ", expected a new capture");
  pull.p.set_requires_grad(true);
  EXPECT_EQ(program.stale(), "");
  program.replay_and_wait();
  o.reset();
  EXPECT_EQ(error_of([&] { program.replay_and_wait(); }),
            "replay_and_wait: the optimizer does not exist any more, expected a new capture");
  EXPECT_EQ(error_of([&] { program.optimizer(); }),
            "optimizer: the optimizer does not exist any more, expected a new capture");
}

TEST_F(ProgramCpu, InputsAreWhatTheStepReadsAndDoesNotWrite) {
  const Pull pull(engine());
  ml::Sgd o({pull.p}, 0.1);
  auto program = ml::TrainingProgram::capture(engine(), o, [&] { return pull.step(); });
  const std::vector<f32> three(3), two(2);
  EXPECT_EQ(
      error_of([&] { program.upload_input(pull.p.data(), three); }),
      "upload_input: the value is no input of the program, got f32 [3], expected one that the "
      "step reads and does not write");
  EXPECT_EQ(
      error_of([&] { program.upload_input(Matrix(), three); }),
      "upload_input: the value is no input of the program, got nothing, expected one that the "
      "step reads and does not write");
  EXPECT_EQ(error_of([&] { program.upload_input(pull.x, two); }),
            "upload_input: element count does not fit shape [3], got 2, expected 3");
  EXPECT_EQ(error_of([&] { program.upload_input(pull.x, std::vector<u32>(3)); }),
            "upload_input: wrong element type, got u32, expected f32");
  program.upload_input(pull.x, std::vector<f32>{1, 2, 3});
  EXPECT_EQ(program.replay_and_wait(), 0);
  const auto d = program.diagnostics();
  EXPECT_GT(d.operations, 3u);
  EXPECT_GT(d.dispatches, 0u);
  EXPECT_LE(d.barriers, d.dispatches);
  EXPECT_GT(d.inputs, 0u);
  EXPECT_EQ(d.replays, 1u);
  EXPECT_EQ(d.timed_replays, 0u);
  EXPECT_EQ(program.compilation_stages()[1].state, graph::StageState::Analyzed);
}

TEST_F(ProgramCpu, LifeOfAProgram) {
  const Pull pull(engine());
  ml::Sgd o({pull.p}, 0.1);
  auto program = ml::TrainingProgram::capture(engine(), o, [&] { return pull.step(); });
  EXPECT_TRUE(program.is_complete());
  program.wait();
  EXPECT_EQ(error_of([&] { program.loss(); }), "loss: no replay was made, expected one before");
  const Event event = program.replay_timed();
  event.wait();
  EXPECT_GE(event.device_duration(), 0);
  EXPECT_EQ(
      error_of([&] { program.replay().device_duration(); }),
      "Event::device_duration: the event was not timed, expected one from checkpoint_timed()");
  EXPECT_GT(program.replay_timed_and_wait().loss, 0);
  EXPECT_EQ(program.diagnostics().timed_replays, 2u);
  const Matrix loss = program.loss();
  program.reset();
  EXPECT_GT(loss.item(), 0) << "what is held stays";
  for (const auto& [name, call] :
       std::initializer_list<std::pair<std::string, std::function<void()>>>{
           {"replay", [&] { program.replay(); }},
           {"replay_timed", [&] { program.replay_timed(); }},
           {"replay_and_wait", [&] { program.replay_and_wait(); }},
           {"replay_timed_and_wait", [&] { program.replay_timed_and_wait(); }},
           {"upload_input", [&] { program.upload_input(pull.x, std::vector<f32>(3)); }},
           {"wait", [&] { program.wait(); }},
           {"loss", [&] { program.loss(); }},
           {"is_complete", [&] { program.is_complete(); }},
           {"replay_count", [&] { program.replay_count(); }},
           {"diagnostics", [&] { program.diagnostics(); }},
           {"reset", [&] { program.reset(); }}}) {
    EXPECT_EQ(error_of(call), name + ": the program was reset, expected a live one");
  }
}

TEST_F(ProgramCpu, ProgramsComeAndGoInTheSameMemory) {
  Net net(engine());
  ml::AdamW o(net.all_parameters(), 0.01);
  const Matrix x = Matrix::from_f32(engine(), {4, 6}, inputs_of(0));
  const Matrix y = Matrix::from_slice<u32>(engine(), {4}, targets_of(0));
  const auto record = [&]() -> StepRecord {
    ml::GradientTape tape;
    const Matrix loss = ml::loss::cross_entropy(net.forward(x), y);
    tape.backward(loss);
    return loss;
  };
  u64 held = 0, compiled = 0;
  for (u32 i = 0; i < 12; ++i) {
    auto program = ml::TrainingProgram::capture(engine(), o, record);
    program.replay_and_wait();
    program.reset();
    o.zero_grad();
    if (i == 2) {
      held = engine().memory().device.allocated_bytes;
      compiled = engine().counters().programs_compiled;
    }
  }
  EXPECT_EQ(engine().memory().device.allocated_bytes, held);
  EXPECT_EQ(engine().counters().programs_compiled, compiled) << "an equal step has its program";
}

// A bad index in a replay is reported with its op, also after other programs came and went.
TEST_F(ProgramCpu, BadIndicesAreReported) {
  Net net(engine());
  ml::Sgd o(net.all_parameters(), 0.01);
  const Matrix x = Matrix::from_f32(engine(), {4, 6}, inputs_of(0));
  const Matrix y = Matrix::from_slice<u32>(engine(), {4}, targets_of(0));
  const auto record = [&]() -> StepRecord {
    ml::GradientTape tape;
    const Matrix loss = ml::loss::cross_entropy(net.forward(x), y);
    tape.backward(loss);
    return loss;
  };
  auto program = ml::TrainingProgram::capture(engine(), o, record);
  program.replay_and_wait();
  program.upload_input(y, std::vector<u32>{0, 77, 1, 2});
  const std::string text = error_of([&] { program.replay_and_wait(); });
  EXPECT_NE(text.find("index out of range at row 1, got 77, expected 0 to 4"), std::string::npos)
      << text;
  program.upload_input(y, targets_of(1));
  program.replay_and_wait();
}

}  // namespace
}  // namespace oa::test
