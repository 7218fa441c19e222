// What happens around programs: checkpoints between replays, weights that are others for a while,
// tapes, errors in a recording, threads, and what a program outlives.
#include <unistd.h>

#include <thread>

#include "oa/engine/engine_core.h"
#include "oa/matrix/movement.h"
#include "oa/ml/checkpoint/checkpoint.h"
#include "oa/ml/optim/loss_scale.h"
#include "oa/ml/training/it_training.h"
#include "oa/ml/training/plateau_scheduler.h"
#include "support.h"

namespace oa::test {
namespace {

using ml::training::ItTraining;
using ml::training::StepRecord;
using Results = std::vector<Matrix>;

// A classifier, its data and its optimizer.
struct Job {
  Job(const Engine& e, const OptimizerKind& kind)
      : engine(e),
        net(e),
        parameters(net.all_parameters()),
        optimizer(kind.make(parameters)),
        x(Matrix::from_f32(e, {4, 6}, inputs_of(0))),
        y(Matrix::from_slice<u32>(e, {4}, targets_of(0))) {}

  StepRecord record() {
    ml::GradientTape tape;
    const Matrix loss = ml::loss::cross_entropy(net.forward(x), y);
    tape.backward(scale ? scale->scaled(loss) : loss);
    if (scale) scale->unscale(parameters);
    const Matrix guard = ml::clip_grad_norm(std::span<const ml::Parameter>(parameters), 0.5);
    if (scale) scale->update(guard);
    return {loss, guard};
  }
  void capture(Engine& e) {
    program = ml::TrainingProgram::capture(e, *optimizer, [&] { return record(); });
  }
  void load(u32 t, f32 factor = 1) {
    std::vector<f32> in = inputs_of(t);
    for (f32& v : in) v *= factor;
    x.write<f32>(in);
    y.write<u32>(targets_of(t));
  }
  // Step t, by the program if there is one.
  void step(u32 t, f32 factor = 1) {
    load(t, factor);
    if (program) {
      program->replay();
      add_bits(bits, program->loss());
      return;
    }
    optimizer->zero_grad();
    const StepRecord r = record();
    ml::training::record_update(*optimizer, r);
    add_bits(bits, r.loss);
  }
  Bits end() {
    for (const ml::Parameter& p : parameters) add_bits(bits, p.data());
    return bits;
  }

  const Engine& engine;
  Net net;
  Parameters parameters;
  std::unique_ptr<ml::Optimizer> optimizer;
  std::optional<ml::LossScale> scale;
  Matrix x, y;
  Bits bits;
  std::optional<ml::TrainingProgram> program;
};

class Hazards : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, Hazards, testing::Values("cpu", "lavapipe"),
                         [](const auto& tested) { return std::string(tested.param); });

// Saved between steps and loaded into another model, which goes on by replays or by recorded steps,
// whichever of both came before: the bits of a run without a break.
TEST_P(Hazards, ACheckpointBetweenReplaysGoesOnInEveryWay) {
  const auto schedule = std::make_shared<ml::CosineScheduler>(0.1, 0.001, 12);
  const auto path = std::filesystem::temp_directory_path() / fmt::format("oa_hazard_{}", getpid());
  for (const OptimizerKind& kind : optimizer_kinds()) {
    if (std::string_view(kind.name) == "NoOp") continue;
    Bits whole;
    for (const int way : {0, 1, 2, 3}) {  // bits: the first, the second half is captured
      Job first(engine(), kind);
      auto& saved = dynamic_cast<ml::CheckpointOptimizer&>(*first.optimizer);
      saved.follow_schedule(schedule, 0);
      engine().flush();
      if (way & 1) first.capture(engine());
      for (u32 t = 0; t < 6; ++t) first.step(t);
      ml::save_checkpoint(path, first.net, saved, {.step = 6});
      Job second(engine(), kind);
      for (const ml::Parameter& p : second.parameters) p.replace_data(p.data() * 0.5);
      auto& loaded = dynamic_cast<ml::CheckpointOptimizer&>(*second.optimizer);
      engine().flush();
      if (way & 2) second.capture(engine());  // before the load: it keeps its places
      ml::load_checkpoint(engine(), path, second.net, loaded);
      loaded.follow_schedule(schedule, 6);
      second.bits = first.bits;
      for (u32 t = 6; t < 12; ++t) second.step(t);
      // The saved run itself is none the worse for it.
      for (u32 t = 6; t < 12; ++t) first.step(t);
      const Bits end = first.end();
      EXPECT_EQ(second.end(), end) << kind.name << way;
      if (way == 0) whole = end;
      EXPECT_EQ(end, whole) << kind.name << way;
    }
  }
  std::filesystem::remove(path);
}

TEST_P(Hazards, AnOverflowInsideOfAProgramSkipsItsStepAndHalvesTheScale) {
  Bits ends[2];
  for (const bool captured : {false, true}) {
    Job job(engine(), optimizer_kinds()[3]);
    job.scale.emplace(engine(), ml::LossScaleOptions{.initial = 0x1p20, .interval = 4});
    engine().flush();
    if (captured) job.capture(engine());
    for (u32 t = 0; t < 14; ++t) {
      const auto before = job.parameters[0].data().read_f32();
      const f32 scale = job.scale->state().scale;
      job.step(t, t == 5 ? std::numeric_limits<f32>::quiet_NaN() : 1);
      if (t == 5) {
        EXPECT_EQ(job.parameters[0].data().read_f32(), before);
        EXPECT_EQ(job.scale->state(), (ml::LossScale::State{scale / 2, 0}));
      } else {
        EXPECT_NE(job.parameters[0].data().read_f32(), before);
      }
    }
    EXPECT_EQ(job.scale->state().scale, 0x1p22f);
    ends[captured] = job.end();
  }
  EXPECT_EQ(ends[0], ends[1]);
}

TEST_P(Hazards, TimedReplaysHaveTheSameBits) {
  Bits ends[2];
  for (const bool timed : {false, true}) {
    Job job(engine(), optimizer_kinds()[3]);
    engine().flush();
    job.capture(engine());
    for (u32 t = 0; t < 4; ++t) {
      job.load(t);
      if (timed) {
        const auto [loss, seconds] = job.program->replay_timed_and_wait();
        EXPECT_GE(seconds, 0);
        EXPECT_EQ(loss, job.program->loss().item());
      } else {
        job.program->replay();
      }
      add_bits(job.bits, job.program->loss());
    }
    ends[timed] = job.end();
  }
  EXPECT_EQ(ends[0], ends[1]);
}

class HazardsCpu : public testing::Test {
 protected:
  Engine& engine() { return *open_device("cpu").engine; }
};

// Updates would go into the average and be lost with it.
TEST_F(HazardsCpu, NoStepWhileAveragesAreShown) {
  Job j(engine(), optimizer_kinds()[3]);
  ml::ExponentialMovingAverage average(j.net, 0.9);
  engine().flush();
  j.capture(engine());
  j.step(0);
  const auto weights = j.parameters[0].data().read_f32();
  const std::string shows = "parameter \"weight\" shows an average, expected ";
  {
    const auto scope = average.scope();
    EXPECT_EQ(error_of([&] { j.program->replay(); }),
              "replay: " + shows + "a replay after the end of its scope");
    (void)j.record();
    EXPECT_EQ(error_of([&] { j.optimizer->step(); }),
              "AdamW: " + shows + "a step after the end of its scope");
    j.optimizer->zero_grad();
    // What only reads them may run.
    const ml::NoGrad quiet;
    engine().submit(engine().capture([&] { return Results{matrix::sum(j.parameters[0].data())}; }));
  }
  EXPECT_EQ(j.parameters[0].data().read_f32(), weights);
  EXPECT_EQ(j.optimizer->step_count(), 1u);
  j.step(1);
  EXPECT_EQ(j.program->replay_count(), 2u);
}

// A replay replaces elements as any assignment does.
TEST_F(HazardsCpu, ATapeAcrossAReplayIsRefused) {
  Job j(engine(), optimizer_kinds()[3]);
  engine().flush();
  j.capture(engine());
  const u64 version = j.parameters[0].version();
  ml::GradientTape tape;
  const Matrix loss = ml::loss::cross_entropy(j.net.forward(j.x), j.y);
  j.program->replay();
  EXPECT_GT(j.parameters[0].version(), version);
  EXPECT_EQ(error_of([&] { tape.backward(loss); }),
            "backward: weight was changed since the forward pass, expected it unchanged");
}

TEST_F(HazardsCpu, ATapeOverAResultThatIsReplacedIsRefused) {
  const Matrix x = Matrix::from_f32(engine(), {2}, std::vector<f32>{1, 2});
  const ml::Parameter p =
      ml::Parameter::create("p", Matrix::from_f32(engine(), {2}, std::vector<f32>{3, 4}));
  engine().flush();
  const ExecutionPlan plan = engine().capture([&] { return Results{x * 2.0}; });
  engine().submit(plan);
  ml::GradientTape tape;
  const Matrix loss = matrix::sum(p.data() * plan.results()[0]);
  engine().submit(plan);
  const std::string text = error_of([&] { tape.backward(loss); });
  EXPECT_NE(text.find("operand 1 of mul was replaced since the forward pass"), std::string::npos)
      << text;
}

// Two parameters that are added have one gradient; each is scaled once.
TEST_F(HazardsCpu, GradientsThatAreTheSameValueAreScaledOnce) {
  for (const bool captured : {false, true}) {
    const Matrix four = Matrix::from_f32(engine(), {4}, std::vector<f32>{1, 2, 3, 4});
    const Matrix square = Matrix::from_f32(engine(), {2, 2}, std::vector<f32>{1, 2, 3, 4});
    const Parameters all = {ml::Parameter::create("p", matrix::copy(four)),
                            ml::Parameter::create("q", matrix::copy(four)),
                            ml::Parameter::create("r", square)};
    ml::Sgd o(all, 1);
    ml::LossScale scale(engine(), {.initial = 8});
    const Matrix weight = Matrix::from_f32(engine(), {4}, std::vector<f32>{0, 3, 0, 4});
    engine().flush();
    const auto record = [&]() -> StepRecord {
      ml::GradientTape tape;
      const Matrix sum = all[0].data() + all[1].data() + all[2].data().reshape({4});
      const Matrix loss = matrix::sum(sum * weight);
      tape.backward(scale.scaled(loss));
      scale.unscale(all);
      const Matrix norm = ml::clip_grad_norm(std::span<const ml::Parameter>(all), 5);
      return {loss, norm};
    };
    if (captured) {
      ml::TrainingProgram::capture(engine(), o, record).replay_and_wait();
    } else {
      const StepRecord r = record();
      EXPECT_FLOAT_EQ(r.guard.item(), 5 * std::sqrt(3.0f));
      o.step();
    }
    const f32 share = 1 / std::sqrt(3.0f);
    for (const ml::Parameter& p : all) {
      const auto v = p.data().read_f32();
      EXPECT_EQ(v[0], 1);
      EXPECT_FLOAT_EQ(v[1], 2 - 3 * share);
      EXPECT_FLOAT_EQ(v[3], 4 - 4 * share);
    }
  }
}

TEST_F(HazardsCpu, AnErrorInARecordingLeavesEverythingAsItWas) {
  Bits ends[2];
  for (const bool throws : {false, true}) {
    Job j(engine(), optimizer_kinds()[3]);
    engine().flush();
    if (throws) {
      for (const int at : {0, 1}) {  // the first and the second recording
        int calls = 0;
        EXPECT_THROW(ml::TrainingProgram::capture(engine(), *j.optimizer,
                                                  [&]() -> StepRecord {
                                                    StepRecord r = j.record();
                                                    j.optimizer->step();
                                                    if (calls++ == at) throw std::runtime_error("");
                                                    return r;
                                                  }),
                     std::runtime_error);
      }
      EXPECT_EQ(j.optimizer->step_count(), 0u);
      EXPECT_FALSE(j.parameters[0].gradient());
      EXPECT_TRUE(engine().core().graph().empty());
      EXPECT_FALSE(engine().core().capturing());
      // A tape that the error left open is closed: this one is no inner tape of it.
      ml::GradientTape tape;
    }
    j.step(0);
    j.capture(engine());
    j.step(1);
    ends[throws] = j.end();
  }
  EXPECT_EQ(ends[0], ends[1]);
}

// An engine belongs to one thread at a time; different engines run at once.
TEST_F(HazardsCpu, EnginesOnTheirThreads) {
  const auto run = [](Engine& e, Bits& end) {
    Job j(e, optimizer_kinds()[3]);
    e.flush();
    j.capture(e);
    for (u32 t = 0; t < 60; ++t) j.step(t);
    end = j.end();
  };
  Bits ends[3];
  {
    Engine alone = Engine::open({.device = "cpu"});
    run(alone, ends[0]);
  }
  {
    Engine one = Engine::open({.device = "cpu"}), two = Engine::open({.device = "cpu"});
    std::thread other([&] { run(two, ends[2]); });
    run(one, ends[1]);
    other.join();
  }
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_EQ(ends[0], ends[2]);
  // Handed on to another thread and back.
  Engine e = Engine::open({.device = "cpu"});
  Job j(e, optimizer_kinds()[3]);
  e.flush();
  j.capture(e);
  for (u32 t = 0; t < 60; ++t) {
    if (t % 2 == 0) {
      j.step(t);
    } else {
      std::thread([&] { j.step(t); }).join();
    }
  }
  EXPECT_EQ(j.end(), ends[0]);
}

// The program holds what it reads and writes.
TEST_F(HazardsCpu, OutlivesModelAndInputs) {
  Bits ends[2];
  for (const bool dropped : {false, true}) {
    auto net = std::make_unique<Net>(engine());
    ml::AdamW o(net->all_parameters(), 0.1);
    Matrix x = Matrix::from_f32(engine(), {4, 6}, inputs_of(0));
    Matrix y = Matrix::from_slice<u32>(engine(), {4}, targets_of(0));
    engine().flush();
    auto program = ml::TrainingProgram::capture(engine(), o, [&]() -> StepRecord {
      ml::GradientTape tape;
      const Matrix loss = ml::loss::cross_entropy(net->forward(x), y);
      tape.backward(loss);
      return loss;
    });
    if (dropped) {
      net.reset();
      x = y = Matrix();
    }
    // Freed memory would be somebody else's by now.
    std::vector<Matrix> others;
    for (int i = 0; i < 8; ++i) others.push_back(Matrix::from_f32(engine(), {4, 6}, inputs_of(9)));
    for (int i = 0; i < 5; ++i) {
      program.replay();
      add_bits(ends[dropped], program.loss());
    }
    const Matrix loss = program.loss();
    program.reset();
    add_bits(ends[dropped], loss);
  }
  EXPECT_EQ(ends[0], ends[1]);
}

TEST_F(HazardsCpu, APlateauLowersTheRateOfReplays) {
  std::vector<f32> ends[2];
  f64 rates[2];
  for (const bool automatic : {false, true}) {
    const ml::Parameter p =
        ml::Parameter::create("p", Matrix::from_f32(engine(), {3}, std::vector<f32>{1, 2, 3}));
    const Matrix x = Matrix::from_f32(engine(), {3}, std::vector<f32>{0, 1, 0});
    ml::AdamW o({p}, 0.5);
    ml::training::PlateauScheduler plateau = ml::training::PlateauScheduler::with_monitor(
        std::make_shared<ml::ReduceOnPlateau>(0.5, 0.5, 1), "loss",
        [](const auto& s) { return s.last_loss.value_or(0); }, 2);
    ml::training::ItTrainingConfig config{.total_steps = 40};
    ItTraining t = automatic ? ItTraining::create(engine(), o, config)
                             : ItTraining::create_eager_checkpointable(engine(), o, config);
    t.add_callback(plateau);
    while (t.step({}, [&]() -> StepRecord {
      ml::GradientTape tape;
      const Matrix loss = matrix::mean(matrix::square(p.data() - x));
      tape.backward(loss);
      return loss;
    })) {
    }
    if (automatic) {
      ASSERT_NE(t.training_program(), nullptr);
      EXPECT_EQ(t.training_program()->replay_count(), 39u);
    }
    ends[automatic] = p.data().read_f32();
    rates[automatic] = o.learning_rate();
  }
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_EQ(rates[0], rates[1]);
  EXPECT_LT(rates[1], 0.5);
}

// Graphs that are next to nothing.
TEST_F(HazardsCpu, SmallCaptures) {
  Engine& e = engine();
  const Matrix x = Matrix::from_f32(e, {2, 2}, std::vector<f32>{1, 2, 3, 4});
  const Matrix none = Matrix::from_f32(e, {0, 3}, std::vector<f32>());
  e.flush();
  const ExecutionPlan same = e.capture([&] { return Results{x, x.reshape({4})}; });
  e.submit(same);
  EXPECT_EQ(same.results()[1].read_f32(), (std::vector<f32>{1, 2, 3, 4}));
  EXPECT_EQ(same.dispatch_count(), 0u);
  const ExecutionPlan nothing = e.capture([&] { return Results{}; });
  e.submit(nothing).wait();
  const ExecutionPlan empty = e.capture([&] { return Results{none + 1.0, matrix::sum(none)}; });
  e.submit(empty);
  EXPECT_EQ(empty.results()[0].num_elements(), 0);
  EXPECT_EQ(empty.results()[1].item(), 0);
  const ExecutionPlan views = e.capture([&] {
    const Matrix y = x * 2.0;
    const Matrix flat = y.reshape({4});
    y.assign(y + 1.0);
    return Results{y, flat, flat * 10.0, y};
  });
  for (const f32 first : {1.0f, 5.0f}) {
    x.write<f32>(std::vector<f32>{first, 2, 3, 4});
    e.submit(views);
    EXPECT_EQ(views.results()[0].read_f32(), (std::vector<f32>{2 * first + 1, 5, 7, 9}));
    EXPECT_EQ(views.results()[1].read_f32(), (std::vector<f32>{2 * first + 1, 5, 7, 9}));
    EXPECT_EQ(views.results()[2].read_f32(), (std::vector<f32>{20 * first + 10, 50, 70, 90}));
  }
  // Two plans on one state, in turns.
  const Matrix state = Matrix::from_f32(e, {2}, std::vector<f32>{1, 2});
  e.flush();
  const auto plan = [&](const std::function<Matrix()>& next) {
    return e.capture([&] {
      state.assign(next());
      return Results{matrix::sum(state)};
    });
  };
  const ExecutionPlan doubles = plan([&] { return state * 2.0; });
  const ExecutionPlan turns = plan([&] { return matrix::flip(state, 0) + 1.0; });
  e.submit(doubles);
  e.submit(turns);
  e.submit(doubles);
  EXPECT_EQ(state.read_f32(), (std::vector<f32>{10, 6}));
  EXPECT_EQ(turns.results()[0].item(), 8);
  EXPECT_EQ(error_of([&] { e.capture([&] { return Results{x * x.read_f32()[0]}; }); }),
            "read: the host would see the same elements at each replay, expected the value itself");
}

}  // namespace
}  // namespace oa::test
