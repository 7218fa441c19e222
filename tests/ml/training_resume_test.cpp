// Checkpoints during trainings: names, rotation, best and latest, and trainings that go on bit by
// bit where another one stopped.
#include <bit>
#include <set>

#include "oa/matrix/elementwise.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/checkpoint/checkpoint_manager.h"
#include "oa/ml/nn/basic.h"
#include "oa/ml/nn/linear.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/muon.h"
#include "oa/ml/optim/sgd.h"
#include "oa/ml/training/checkpoint_callback.h"
#include "oa/ml/training/early_stopping.h"
#include "oa/ml/training/learning_rate_scheduler.h"
#include "oa/ml/training/loss_curve.h"
#include "oa/ml/training/validation.h"
#include "tests/ml/training_support.h"

namespace oa::test {
namespace {

using ml::CheckpointManager;
using ml::CheckpointManagerConfig;

// Two layers with dropout between them.
class Net final : public ml::Module {
 public:
  explicit Net(const Engine& engine, u64 seed = 1)
      : first(registry().register_module("first", ml::nn::Linear::with_seed(engine, 6, 8, seed))),
        dropout(registry().register_module("dropout", ml::nn::Dropout::with_seed(engine, 0.25, 5))),
        second(registry().register_module("second",
                                          ml::nn::Linear::with_seed(engine, 8, 1, seed + 2))),
        flag(registry().register_state_u32("flag", 0)) {}
  Matrix forward(const Matrix& x) override {
    return second->forward(dropout->forward(first->forward(x)));
  }
  std::shared_ptr<ml::nn::Linear> first;
  std::shared_ptr<ml::nn::Dropout> dropout;
  std::shared_ptr<ml::nn::Linear> second;
  ml::StateU32 flag;
};

using MakeOptimizer =
    std::function<std::unique_ptr<ml::CheckpointOptimizer>(std::vector<ml::Parameter>)>;

class ResumeTest : public TrainingTest {
 protected:
  CheckpointManagerConfig manager_config(const std::string& name = "Net") {
    CheckpointManagerConfig c;
    c.directory = folder;
    c.model_name = name;
    return c;
  }

  // One process' part of a training: what it takes over comes from the files alone.
  std::vector<f32> train(u64 from, u64 stop_after, const MakeOptimizer& make,
                         const std::string& name, std::string* state = nullptr) {
    Net net(engine(), from + 17);  // other weights than the file's
    const auto optimizer = make(net.all_parameters());
    CheckpointManager manager = CheckpointManager::create(engine(), manager_config(name));
    if (from > 0) {
      EXPECT_EQ(manager.resume_latest_into(net, *optimizer), from);
    } else {
      load_start(net);
    }
    ItTraining training = ItTraining::create(engine(), *optimizer, config(12, 5, from));
    struct Falling final : ml::LrScheduler {
      f64 rate(u64 step) const override { return 0.05 / static_cast<f64>(step + 1); }
    };
    LearningRateScheduler scheduler(std::make_shared<Falling>());
    EarlyStopping stopping(50, 0);
    LossCurve curve(folder / (name + "_curve"), 1e9);
    Checkpoint checkpoint(manager, net);
    checkpoint.set_verbose(false).set_restore_best(false);
    for (TrainingCallback* c :
         std::initializer_list<TrainingCallback*>{&scheduler, &stopping, &curve, &checkpoint}) {
      training.add_callback(*c);
    }
    if (from > 0) training.load_state(manager.last_loaded().extra);
    const Matrix input = matrix::zeros(engine(), {4, 6});
    std::vector<f32> data(24);
    while (training.step(
        [&] {
          // The order of the data is a function of the step.
          const u64 at = training.snapshot().step_count;
          for (size_t i = 0; i < data.size(); ++i) {
            data[i] = static_cast<f32>((at * 7 + i * 5) % 11) / 11;
          }
          input.write<f32>(data);
          if (at + 1 == stop_after) training.request_stop();
        },
        [&] {
          ml::GradientTape tape;
          const Matrix y = net(input);
          const Matrix loss =
              (y * y).flatten().reshape({1, 4}).mat_mul(matrix::ones(engine(), {4, 1})).reshape({});
          tape.backward(loss);
          return loss;
        })) {
    }
    training.finish();
    if (state != nullptr) *state = training.save_state();
    std::vector<f32> all;
    for (const ml::Parameter& p : net.all_parameters()) {
      for (const f32 x : p.data().read_f32()) all.push_back(x);
    }
    const ml::OptimizerState moments = optimizer->checkpoint_state();
    all.insert(all.end(), moments.first_moment.begin(), moments.first_moment.end());
    all.insert(all.end(), moments.second_moment.begin(), moments.second_moment.end());
    all.push_back(static_cast<f32>(moments.step));
    all.push_back(static_cast<f32>(*training.snapshot().last_loss));
    all.push_back(static_cast<f32>(training.snapshot().epoch_mean_loss));
    return all;
  }
  void load_start(Net& net) const {
    Net start(engine(), 17);
    const auto from = start.all_parameters(), to = net.all_parameters();
    for (size_t i = 0; i < to.size(); ++i) to[i].replace_data(from[i].data());
  }
};

TEST_F(ResumeTest, StraightAndInPartsAreTheSameBits) {
  const std::vector<std::pair<std::string, MakeOptimizer>> kinds = {
      {"sgd", [](auto p) { return std::make_unique<ml::Sgd>(p, 0.05, 0.0, 0.01); }},
      {"momentum", [](auto p) { return std::make_unique<ml::Sgd>(p, 0.05, 0.9, 0.01); }},
      {"adam", [](auto p) { return std::make_unique<ml::Adam>(p, 0.05); }},
      {"adamw", [](auto p) { return std::make_unique<ml::AdamW>(p, 0.05); }},
      {"muon", [](auto p) { return std::make_unique<ml::Muon>(p, 0.05); }}};
  for (const auto& [name, make] : kinds) {
    std::string straight_state, parts_state;
    const std::vector<f32> straight = train(0, 99, make, name + "_straight", &straight_state);
    train(0, 3, make, name);  // inside an epoch
    train(3, 5, make, name);  // at the end of one
    const std::vector<f32> parts = train(5, 99, make, name, &parts_state);
    ASSERT_EQ(straight.size(), parts.size()) << name;
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(std::bit_cast<u32>(straight[i]), std::bit_cast<u32>(parts[i])) << name << ' ' << i;
    }
    EXPECT_EQ(straight_state, parts_state) << name;
  }
}

TEST_F(ResumeTest, NamesRotationLatestAndBest) {
  Net net(engine());
  ml::AdamW adam(net.all_parameters(), 0.01);
  CheckpointManagerConfig c = manager_config("My.Net-1");
  c.context = "run_2";
  c.max_keep = 2;
  CheckpointManager manager = CheckpointManager::create(engine(), c);
  EXPECT_EQ(manager.incremental_directory(), folder / "My.Net-1" / "checkpoint_run_2");
  EXPECT_EQ(error_of([&] { manager.load_latest_into(net, adam); }, ErrorKind::FailedPrecondition),
            "CheckpointManager: no checkpoint in " + manager.incremental_directory().string());
  const auto file = [&](u64 step, const char* metric) {
    return manager.incremental_directory() /
           fmt::format("My.Net-1_run_2_step{}_{}.oam", step, metric);
  };
  const auto files = [&] {
    std::set<std::filesystem::path> out;
    for (const auto& e : std::filesystem::directory_iterator(manager.incremental_directory())) {
      out.insert(e.path());
    }
    return out;
  };
  const auto to_step = [&](u64 step) { adam.count_replays(step - adam.step_count()); };
  to_step(8);
  net.flag.set(8);
  EXPECT_TRUE(manager.maybe_save(net, adam, 8, 1.25, false));
  EXPECT_EQ(files(), (std::set{file(8, "loss1.25")}));
  to_step(9);
  net.flag.set(9);
  EXPECT_FALSE(manager.maybe_save(net, adam, 9, 1.25, false)) << "not strictly better";
  EXPECT_EQ(files().size(), 1u) << "nothing written";
  EXPECT_FALSE(manager.maybe_save(net, adam, 9, 1.5, true));
  to_step(10);
  net.flag.set(10);
  EXPECT_EQ(manager.save_incremental(net, adam, 10, 3, "train"), file(10, "train3.00"));
  EXPECT_EQ(files(), (std::set{file(9, "loss1.50"), file(10, "train3.00")}))
      << "numbers in order, not text";
  EXPECT_EQ(
      error_of([&] { manager.maybe_save(net, adam, 11, 1, true); }, ErrorKind::InvalidArgument),
      "CheckpointManager: step, got 11, expected the optimizer's 10");
  EXPECT_EQ(
      error_of([&] { manager.maybe_save(net, adam, 10, 1e300, true); }, ErrorKind::InvalidArgument),
      "CheckpointManager: metric, got 1e+300, expected a number that is finite as f32");

  // Files that are none of ours: another model's, a torn one of a process that was killed.
  const auto dir = manager.incremental_directory();
  std::ofstream(dir / "Other_step99_loss1.00.oam") << "x";
  std::ofstream(dir / "My.Net-1_run_2_step99_loss1.00.oam.tmp.7.0") << "x";
  std::ofstream(dir / "My.Net-1_run_2_stepX_loss1.00.oam") << "x";
  CheckpointManager other = CheckpointManager::create(engine(), c);
  EXPECT_EQ(other.resume_latest_into(net, adam), 10u);
  EXPECT_EQ(other.best_metric(), 1.25);
  EXPECT_EQ(adam.step_count(), 10u);
  other.load_best_into(net, adam);
  EXPECT_EQ(net.flag.value(), 8u);
  EXPECT_EQ(adam.step_count(), 8u);
  // The next save removes the torn file, and nothing of others.
  std::ofstream(dir / "Other_step99_loss1.00.oam.tmp.7.0") << "x";
  std::ofstream(other.master_path().string() + ".tmp.7.1") << "x";
  other.load_latest_into(net, adam);
  other.save_incremental(net, adam, 10, 3, "train");
  EXPECT_FALSE(std::filesystem::exists(dir / "My.Net-1_run_2_step99_loss1.00.oam.tmp.7.0"));
  EXPECT_FALSE(std::filesystem::exists(other.master_path().string() + ".tmp.7.1"));
  EXPECT_TRUE(std::filesystem::exists(dir / "Other_step99_loss1.00.oam.tmp.7.0"));
  EXPECT_TRUE(std::filesystem::exists(dir / "Other_step99_loss1.00.oam"));

  std::filesystem::rename(file(10, "train3.00"), file(12, "train3.00"));
  CheckpointManager renamed = CheckpointManager::create(engine(), c);
  EXPECT_EQ(error_of([&] { renamed.load_latest_into(net, adam); }, ErrorKind::InvalidArgument),
            fmt::format("CheckpointManager: step of {}, got 10, expected 12",
                        file(12, "train3.00").string()));
  c.metric_name = "accuracy";
  CheckpointManager changed = CheckpointManager::create(engine(), c);
  error_of([&] { changed.resume_latest_into(net, adam); }, ErrorKind::InvalidArgument);
}

TEST_F(ResumeTest, NamesStayInsideTheirFolder) {
  for (const char* bad : {"", ".", "..", "a/b", "a b", "é"}) {
    error_of([&] { CheckpointManager::create(engine(), manager_config(bad)); },
             ErrorKind::InvalidArgument);
  }
  EXPECT_EQ(error_of([&] { CheckpointManager::create(engine(), manager_config("..")); },
                     ErrorKind::InvalidArgument),
            "CheckpointManager: model_name, got \"..\", expected letters, digits and _ . -, but "
            "not \".\" or \"..\"");
}

TEST_F(ResumeTest, BestModelComesBack) {
  Net net(engine());
  ml::Sgd sgd(net.all_parameters(), 0.01);
  CheckpointManager manager = CheckpointManager::create(engine(), manager_config());
  std::string messages;
  Checkpoint checkpoint(manager, net);
  checkpoint.set_message_sink([&](const std::string& m) { messages += m + "\n"; });
  const std::vector<f64> losses = {3, 1, std::nan(""), 2};
  ItTraining training = ItTraining::create(engine(), sgd, config(4, 1));
  training.add_callback(checkpoint);
  for (const f64 loss : losses) {
    net.flag.set(net.flag.value() + 1);
    step(training, loss);
  }
  training.finish();
  EXPECT_EQ(checkpoint.best_epoch(), 2u);
  EXPECT_EQ(net.flag.value(), 2u);
  EXPECT_EQ(sgd.step_count(), 2u);
  const std::string at = manager.incremental_directory().string();
  EXPECT_EQ(messages, fmt::format("step 1: saved {0}/Net_step1_loss3.00.oam, the best\n"
                                  "step 2: saved {0}/Net_step2_loss1.00.oam, the best\n"
                                  "step 3: not saved, loss is nan\n"
                                  "step 4: saved {0}/Net_step4_loss2.00.oam\n"
                                  "step 4: the model of step 2 is the best and is back\n",
                                  at));
}

TEST_F(ResumeTest, SavesByStepsAndAfterAStop) {
  Net net(engine());
  ml::Sgd sgd(net.all_parameters(), 0.01);
  CheckpointManager manager = CheckpointManager::create(engine(), manager_config());
  Checkpoint checkpoint(manager, net);
  checkpoint.set_save_every(2).set_verbose(false);
  ItTraining training = ItTraining::create(engine(), sgd, config(0));
  training.add_callback(checkpoint);
  for (int i = 0; i < 5; ++i) step(training, 1);
  EXPECT_EQ(manager.latest()->second, 4u);
  training.request_stop();
  EXPECT_FALSE(step(training, 1));
  training.finish();
  EXPECT_EQ(manager.latest()->second, 5u) << "no step is lost";
}

TEST_F(ResumeTest, AFailedSaveEndsTheTrainingAndKeepsTheOldFile) {
  Net net(engine());
  ml::Sgd sgd(net.all_parameters(), 0.01);
  CheckpointManager manager = CheckpointManager::create(engine(), manager_config());
  Checkpoint checkpoint(manager, net);
  checkpoint.set_verbose(false);
  ItTraining training = ItTraining::create(engine(), sgd, config(0, 1));
  training.add_callback(checkpoint);
  step(training, 1);
  const auto first = manager.latest()->first;
  const std::string before = text_of(first);
  // A folder where the next file should be.
  std::filesystem::create_directories(manager.incremental_directory() / "Net_step2_loss0.50.oam" /
                                      "x");
  error_of([&] { step(training, 0.5); }, ErrorKind::Io);
  EXPECT_EQ(text_of(first), before);
  EXPECT_EQ(checkpoint.best_epoch(), 1u);
  EXPECT_EQ(manager.best_metric(), 1.0);
}

TEST_F(ResumeTest, ByValidationWithoutEpochs) {
  Net net(engine());
  ml::Sgd sgd(net.all_parameters(), 0.01);
  CheckpointManager manager = CheckpointManager::create(engine(), manager_config());
  f64 next = 1;
  Validation validation([&](const TrainingSnapshot&) { return ValidationResult{next, 1, 1}; },
                        "val_loss", 2);
  Checkpoint checkpoint(manager, net);
  checkpoint.set_validation_metric(validation.metric()).set_verbose(false).set_restore_best(false);
  ItTraining training = ItTraining::create(engine(), sgd, config(7));
  training.add_callback(validation);
  training.add_callback(checkpoint);
  for (int i = 1; i <= 7; ++i) {
    next = i == 4 ? 0.25 : 1.0;
    step(training, 9);
  }
  EXPECT_EQ(checkpoint.best_step(), 4u);
  EXPECT_EQ(manager.latest()->second, 4u) << "no better one came";
  training.finish();
  EXPECT_EQ(manager.latest()->second, 7u);
}

}  // namespace
}  // namespace oa::test
