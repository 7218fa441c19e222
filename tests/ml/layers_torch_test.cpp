// Losses, norms and activations beside values and gradients that PyTorch made
// (tests/fixtures/losses), in double precision on the CPU and in single precision on all devices.
#include <cmath>
#include <sstream>

#include "oa/matrix/reduce.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/cross_entropy.h"
#include "oa/ml/loss/elementwise.h"
#include "oa/ml/matrix/activation.h"
#include "oa/ml/matrix/norm.h"
#include "tests/fixtures/losses/torch_values.h"
#include "tests/matrix/devices.h"

namespace oa::test {
namespace {

using namespace ml::loss;    // NOLINT
using namespace ml::matrix;  // NOLINT

struct Stored {
  Shape shape;
  std::vector<f64> v;
};
struct Case {
  std::string name;
  std::map<std::string, Stored> values;
};

std::vector<Case> parse() {
  std::vector<Case> cases;
  std::istringstream text(kTorchLosses);
  for (std::string line; std::getline(text, line);) {
    std::istringstream in(line);
    std::string name, extents, colon;
    in >> name;
    if (name == "case") {
      cases.push_back({line.substr(5), {}});
      continue;
    }
    in >> extents >> colon;
    Stored s;
    if (extents != "-") {
      std::istringstream e(extents);
      for (std::string n; std::getline(e, n, 'x');) s.shape.push_back(std::stoll(n));
    }
    for (f64 x; in >> x;) s.v.push_back(x);
    cases.back().values[name] = s;
  }
  return cases;
}

using Values = std::map<std::string, Matrix>;

Matrix run(const std::string& name, Values& v) {
  if (name == "relu") return relu(v["x"]);
  if (name == "leaky_relu") return leaky_relu(v["x"], 0.1);
  if (name == "elu") return elu(v["x"], 0.7);
  if (name == "gelu") return gelu(v["x"]);
  if (name == "gelu_erf") return gelu_erf(v["x"]);
  if (name == "silu") return silu(v["x"]);
  if (name == "mish") return mish(v["x"]);
  if (name == "layer_norm") return layer_norm(v["x"], v["w"], v["b"], 1e-5);
  if (name == "rms_norm") return rms_norm(v["x"], v["w"], 1e-3);
  if (name == "rms_norm_gated") return rms_norm_gated(v["x"], v["w"], v["b"], v["gate"], 1e-5);
  if (name == "mse") return mse(v["p"], v["t"]);
  if (name == "l1") return l1(v["p"], v["t"]);
  if (name == "smooth_l1") return smooth_l1(v["p"], v["t"]);
  if (name == "bce") return bce(v["p"], v["t"]);
  if (name == "bce_with_logits") return bce_with_logits(v["p"], v["t"]);
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  CrossEntropyOptions o;
  o.reduction = has("none") ? Reduction::None : has("sum") ? Reduction::Sum : Reduction::Mean;
  if (has("ignore")) o.ignore_index = 2;
  if (has("weight")) o.class_weights = v["weight"];
  if (has("smooth")) o.label_smoothing = 0.2;
  return cross_entropy(v["x"], v["t"], o);
}

void compare(Engine& e, DType dtype, f64 tolerance) {
  const std::vector<Case> cases = parse();
  ASSERT_EQ(cases.size(), 33u);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Values v;
    for (const auto& [name, s] : c.values) {
      const bool classes = name == "t" && c.name.starts_with("cross_entropy") &&
                           c.name.find("soft") == std::string::npos;
      if (classes) {
        v[name] = Matrix::from_slice<i32>(e, s.shape, std::vector<i32>(s.v.begin(), s.v.end()));
      } else if (dtype == DType::F64) {
        v[name] = Matrix::from_slice<f64>(e, s.shape, s.v);
      } else {
        v[name] = Matrix::from_slice<f32>(e, s.shape, std::vector<f32>(s.v.begin(), s.v.end()));
      }
    }
    ml::GradientTape tape;
    for (const auto& [name, s] : c.values) {
      if (name.starts_with("d_")) tape.watch(v[name.substr(2)]);
    }
    const Matrix y = run(c.name, v);
    const Matrix root = matrix::sum(y * v["given"]);
    tape.backward(root);
    const auto check = [&](const std::string& what, const Matrix& got) {
      const Stored& want = c.values.at(what);
      EXPECT_EQ(got.shape(), want.shape) << what;
      const std::vector<f64> g =
          matrix::cast(got, dtype).dtype() == DType::F64 ? got.read<f64>() : [&] {
            const std::vector<f32> f = got.read<f32>();
            return std::vector<f64>(f.begin(), f.end());
          }();
      ASSERT_EQ(g.size(), want.v.size());
      for (size_t i = 0; i < g.size(); ++i) {
        EXPECT_NEAR(g[i], want.v[i], tolerance * std::max(1.0, std::abs(want.v[i])))
            << what << " element " << i;
      }
    };
    check("result", y);
    for (const auto& [name, s] : c.values) {
      if (!name.starts_with("d_")) continue;
      const auto g = tape.gradient(v[name.substr(2)]);
      ASSERT_TRUE(g.has_value()) << name;
      check(name, *g);
    }
  }
}

TEST(LayersBesideTorch, InDoublePrecision) {
  compare(*open_device("cpu").engine, DType::F64, 2e-11);
}

class LayersBesideTorchOn : public OnDevice {};
TEST_P(LayersBesideTorchOn, InSinglePrecision) { compare(engine(), DType::F32, 2e-5); }
INSTANTIATE_TEST_SUITE_P(Devices, LayersBesideTorchOn, testing::Values("cpu", "lavapipe"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace oa::test
