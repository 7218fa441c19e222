// What the tests of trainings share: a clock that they set, an optimizer that only counts, a folder
// of their own, and a shortcut for a step with a given loss.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "oa/core/error.h"
#include "oa/matrix/create.h"
#include "oa/ml/training/it_training.h"

namespace oa::test {

using namespace ml::training;  // NOLINT(google-build-using-namespace)

struct FakeClock {
  f64 now = 1000;
  Clock clock() {
    return [this] { return now; };
  }
};

class CountingOptimizer final : public ml::CheckpointOptimizer {
 public:
  explicit CountingOptimizer(const Engine& engine) : engine_(&engine.core()) {}
  void zero_grad() override { ++zeroed; }
  void step() override { ++steps; }
  void step_if_finite(const Matrix& guard) override {
    ++steps;
    guards.push_back(guard.item());
  }
  void count_replays(u64 replays) override { steps += replays; }
  f64 learning_rate() const override { return rate; }
  void set_learning_rate(f64 r) override {
    if (!(r >= 0)) invalid("set_learning_rate", "rate, got {}, expected 0 or more", r);
    rate = r;
    rates.push_back(r);
  }
  u64 step_count() const override { return steps; }
  bool belongs_to(const Engine& engine) const override { return &engine.core() == engine_; }
  const std::vector<ml::Parameter>& parameters() const override { return none_; }
  ml::OptimizerState checkpoint_state() const override { return {}; }
  void validate_checkpoint_state(const ml::OptimizerState& /*state*/) const override {}
  void restore_checkpoint_state(const ml::OptimizerState& /*state*/) override {}

  u64 zeroed = 0, steps = 0;
  f64 rate = 0.1;
  std::vector<f64> rates;
  std::vector<f32> guards;

 private:
  const EngineCore* engine_;
  std::vector<ml::Parameter> none_;
};

class TrainingTest : public testing::Test {
 protected:
  // One engine for all: its values belong to this thread anyway.
  static Engine& engine() {
    static Engine e = Engine::open({.device = "cpu"});
    return e;
  }
  TrainingTest() : optimizer(engine()) {
    folder = std::filesystem::temp_directory_path() /
             fmt::format("oa_training_test.{}.{}", getpid(),
                         testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder);
  }
  ~TrainingTest() override { std::filesystem::remove_all(folder); }

  ItTrainingConfig config(u64 total, u64 per_epoch = 0, u64 initial = 0) {
    ItTrainingConfig c;
    c.total_steps = total;
    c.steps_per_epoch = per_epoch;
    c.initial_step = initial;
    c.clock = clock.clock();
    return c;
  }
  // One step that takes `seconds`; false when there is none.
  bool step(ItTraining& training, f64 loss, f64 seconds = 1) {
    if (!training.begin_step()) return false;
    clock.now += seconds;
    training.complete_step(Matrix::from_f32(engine(), {}, std::array{static_cast<f32>(loss)}));
    return true;
  }
  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  FakeClock clock;
  CountingOptimizer optimizer;
  std::filesystem::path folder;
};

// Runs `call` and returns what() of the oa::Error that it throws.
template <class F>
std::string error_of(F&& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

// Notes every call as a letter: b E s e t (train begin, epoch begin, step end, epoch end, train
// end).
class Recorder final : public TrainingCallback {
 public:
  explicit Recorder(std::string& log, std::string tag = "") : log_(log), tag_(std::move(tag)) {}
  TrainingControl on_train_begin(const TrainingCallbackContext& c) override { return note('b', c); }
  TrainingControl on_epoch_begin(const TrainingCallbackContext& c) override { return note('E', c); }
  TrainingControl on_step_end(const TrainingCallbackContext& c) override { return note('s', c); }
  TrainingControl on_epoch_end(const TrainingCallbackContext& c) override { return note('e', c); }
  TrainingControl on_train_end(const TrainingCallbackContext& c) override { return note('t', c); }

  char stop_at = 0;   // answers Stop to this call
  char throw_at = 0;  // fails in this call
  TrainingSnapshot last;

 private:
  TrainingControl note(char call, const TrainingCallbackContext& context) {
    log_ += tag_;
    log_ += call;
    last = context.snapshot();
    if (call == throw_at) throw Error::callback("told to fail");
    return call == stop_at ? TrainingControl::Stop : TrainingControl::Continue;
  }
  std::string& log_;
  std::string tag_;
};

}  // namespace oa::test
