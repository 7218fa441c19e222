// Engine::capture of graphs without training: forward passes, and states that are moved on in
// place.
#include "oa/ml/nn/recurrent.h"
#include "oa/ml/nn/transformer.h"
#include "support.h"

namespace oa::test {
namespace {

using Results = std::vector<Matrix>;

class Inference : public OnDevice {};

INSTANTIATE_TEST_SUITE_P(Devices, Inference, testing::Values("cpu", "lavapipe"),
                         [](const auto& tested) { return std::string(tested.param); });

Bits bits_of(const Matrix& m) {
  Bits bits;
  add_bits(bits, m);
  return bits;
}

TEST_P(Inference, AForwardPassIsRepeatedOnNewInputs) {
  const auto model = ml::nn::Transformer::with_seed(engine(), 32, 8, 16, 32, 1, 2, 1e-5, 5);
  const ml::NoGrad quiet;
  const Matrix tokens = from<u32>({2, 8}, std::vector<u32>(16, 1));
  const ExecutionPlan plan = engine().capture([&] { return Results{model->forward(tokens)}; });
  const Matrix logits = plan.results().at(0);
  EXPECT_TRUE(plan.is_input(tokens));
  EXPECT_FALSE(plan.is_input(logits));
  EXPECT_EQ(plan.submissions(), 0u);
  for (u32 t = 0; t < 4; ++t) {
    std::vector<u32> values(16);
    for (u32 i = 0; i < 16; ++i) values[i] = (i * 5 + t * 11) % 32;
    tokens.write<u32>(values);
    engine().submit(plan);
    EXPECT_EQ(bits_of(logits), bits_of(model->forward(tokens))) << t;
  }
  EXPECT_EQ(plan.submissions(), 4u);
  EXPECT_GT(plan.graph().nodes.size(), plan.dispatch_count());
}

TEST_P(Inference, AStateInPlaceGoesOnFromSubmissionToSubmission) {
  const auto cell = ml::nn::GruCell::with_seed(engine(), 3, 5, true, 7);
  const ml::NoGrad quiet;
  const Matrix x = from<f32>({2, 3}, random_f32(1, 6));
  const Matrix state = from<f32>({2, 5}, std::vector<f32>(10));
  Matrix expected = from<f32>({2, 5}, std::vector<f32>(10));
  const ExecutionPlan plan = engine().capture([&] {
    state.assign(cell->step(x, state));
    return Results{matrix::mean(state)};
  });
  EXPECT_FALSE(plan.is_input(state));
  for (u32 t = 0; t < 5; ++t) {
    x.write<f32>(random_f32(t + 2, 6));
    engine().submit(plan);
    expected = cell->step(x, expected);
    EXPECT_EQ(bits_of(state), bits_of(expected)) << t;
    EXPECT_EQ(bits_of(plan.results()[0]), bits_of(matrix::mean(expected))) << t;
  }
}

// A state in handles of the host is another value each time.
TEST_P(Inference, AStateInHandlesIsRefused) {
  const auto cell = ml::nn::GruCell::with_seed(engine(), 3, 5, true, 7);
  const ml::NoGrad quiet;
  const Matrix x = from<f32>({2, 3}, random_f32(1, 6));
  Matrix state = from<f32>({2, 5}, std::vector<f32>(10));
  EXPECT_EQ(
      error_of([&] { engine().capture([&] { return Results{state = cell->step(x, state)}; }); }),
      "gru_cell: operand 1 is a result of the recording before, which no replay would see, "
      "expected a value with elements of its own that assign() replaces");
}

TEST(CaptureCalls, OnceWithoutVerification) {
  Engine& e = *open_device("cpu").engine;
  const Matrix x = Matrix::from_f32(e, {2}, std::vector<f32>{1, 2});
  u32 calls = 0;
  const auto fn = [&] { return Results{x * static_cast<f64>(++calls)}; };
  const ExecutionPlan plan = e.capture(fn, {.verify = false});
  EXPECT_EQ(calls, 1u);
  e.submit(plan);
  EXPECT_EQ(plan.results()[0].read_f32(), (std::vector<f32>{1, 2}));
  const Event event = e.submit_timed(plan);
  EXPECT_GE(event.device_duration(), 0);
  const std::string text = error_of([&] { e.capture(fn); });
  EXPECT_TRUE(text.starts_with("scale: number 0 comes from the host")) << text;
  EXPECT_EQ(error_of([&] {
              e.capture([&] {
                e.submit(plan);
                return Results{};
              });
            }),
            "submit: a plan cannot be submitted during a capture");
  EXPECT_EQ(error_of([&] { e.capture([&] { return Results{Matrix()}; }); }),
            "capture: a result is empty, expected values");
  EXPECT_EQ(error_of([] { ExecutionPlan().dispatch_count(); }),
            "ExecutionPlan: the plan is empty, expected a captured one");
}

// A refused capture takes no seed from the engine.
TEST(CaptureCalls, ARefusalLeavesTheSeeds) {
  Engine& e = *open_device("cpu").engine;
  e.set_rng_seed(9);
  const u64 first = e.next_seed(), second = e.next_seed();
  e.set_rng_seed(9);
  EXPECT_EQ(e.next_seed(), first);
  error_of([&] { e.capture([&] { return Results{matrix::uniform(e, {3})}; }); });
  EXPECT_EQ(e.next_seed(), second);
}

}  // namespace
}  // namespace oa::test
