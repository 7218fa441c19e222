// A step of a whole model is a handful of dispatches, and a captured one equals the eager one.
#include "oa/engine/engine_core.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/optim/clip.h"
#include "oa/ml/optim/muon.h"
#include "oa/ml/optim/sgd.h"
#include "optim_support.h"

namespace oa::test {
namespace {

std::vector<Shape> thirty_shapes() {
  std::vector<Shape> shapes;
  for (i64 i = 0; i < 30; ++i) {
    shapes.push_back(i % 3 == 0 ? Shape{5 + i} : i % 3 == 1 ? Shape{i + 2, 7} : Shape{2, i, 3});
  }
  return shapes;
}

class OptimDispatch : public OnDevice {
 protected:
  // A GPU has a kernel for multiples of four elements and one for the rest.
  u64 variants() const { return engine_is_cpu() ? 1 : 2; }
  bool engine_is_cpu() const {
    const std::string_view name = GetParam();
    return name == "cpu" || name == "checked";
  }
  // Dispatches of a second step, with gradients that are computed in the same batch.
  u64 dispatches(ml::Optimizer& optimizer, const Model& model, bool clip) {
    const std::vector<Shape> shapes = thirty_shapes();
    u64 before = 0;
    for (u32 t = 1; t <= 2; ++t) {
      set_gradients(engine(), model.parameters, t);
      engine().wait();
      before = engine().counters().dispatches;
      if (clip) {
        optimizer.step_if_finite(ml::clip_grad_norm(std::span(model.parameters), 0.1));
      } else {
        optimizer.step();
      }
      engine().wait();
    }
    return engine().counters().dispatches - before;
  }
};

TEST_P(OptimDispatch, Sgd) {
  const Model model = make_model(engine(), thirty_shapes());
  ml::Sgd plain(model.parameters, 0.1);
  EXPECT_LE(dispatches(plain, model, false), 1 + variants());
  ml::Sgd momentum(model.parameters, 0.1, 0.9, 0.1);
  EXPECT_LE(dispatches(momentum, model, false), 1 + variants());
}

TEST_P(OptimDispatch, AdamW) {
  const Model model = make_model(engine(), thirty_shapes());
  ml::AdamW optimizer(model.parameters, 0.1);
  EXPECT_LE(dispatches(optimizer, model, false), 2 + variants());
}

TEST_P(OptimDispatch, AdamWWithClipping) {
  const Model model = make_model(engine(), thirty_shapes());
  ml::AdamW optimizer(model.parameters, 0.1);
  EXPECT_LE(dispatches(optimizer, model, true), 4 + variants());
}

OA_ON_DEVICES(OptimDispatch);

}  // namespace
}  // namespace oa::test
