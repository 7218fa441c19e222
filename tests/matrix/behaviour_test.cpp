// What users of numeric libraries were bitten by: lengths around the width of a vector, NaN in
// maxima, sums in narrow types, activations far out, and equal bits for any number of threads.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "devices.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"

namespace oa::test {
namespace {

constexpr f32 kInf = std::numeric_limits<f32>::infinity();
constexpr f32 kNan = std::numeric_limits<f32>::quiet_NaN();

class Behaviour : public OnDevice {};

TEST_P(Behaviour, EveryLaneAndTailComputesTheSameBits) {
  const f32 alone = matrix::tanh(from<f32>({1}, {21.66f * 0.04f})).read_f32()[0];
  for (i64 n = 1; n <= 40; n += stride(13)) {
    const std::vector<f32> v(static_cast<size_t>(n), 21.66f * 0.04f);
    for (f32 y : matrix::tanh(from<f32>({n}, v)).read_f32()) {
      ASSERT_EQ(std::bit_cast<u32>(y), std::bit_cast<u32>(alone)) << n;
    }
  }
}

TEST_P(Behaviour, LogSumExpOfNothingButMinusInfinityIsMinusInfinityAtEveryLength) {
  for (i64 n = 1; n <= 33; n += stride(16)) {
    const std::vector<f32> v(static_cast<size_t>(n), -kInf);
    ASSERT_EQ(matrix::log_sum_exp(from<f32>({n}, v), 0).item(), -kInf) << n;
  }
}

TEST_P(Behaviour, SoftmaxOfFarApartLogitsIsFinite) {
  EXPECT_EQ(matrix::softmax(from<f32>({3}, {-1047, -981, 1891})).read_f32(),
            (std::vector<f32>{0, 0, 1}));
  EXPECT_EQ(matrix::log_softmax(from<f32>({3}, {-431, 279, 427})).read_f32(),
            (std::vector<f32>{-858, -148, 0}));
}

TEST_P(Behaviour, NanWinsMaximaAndItsFirstPositionIsTheirs) {
  const std::pair<std::vector<f32>, i32> rows[] = {{{3, kNan, 1, 5}, 1},
                                                   {{1, 2, kNan}, 2},
                                                   {{kInf, kNan, -kInf}, 1},
                                                   {std::vector<f32>(58, kNan), 0}};
  for (const auto& [v, first] : rows) {
    const Matrix x = from<f32>({static_cast<i64>(v.size())}, v);
    EXPECT_TRUE(std::isnan(matrix::max(x).item()));
    EXPECT_TRUE(std::isnan(matrix::min(x).item()));
    EXPECT_EQ(matrix::argmax(x, 0).read<i32>()[0], first);
    EXPECT_EQ(matrix::argmin(x, 0).read<i32>()[0], first);
  }
  EXPECT_EQ(matrix::argmax(from<f32>({3}, {-kInf, -kInf, -kInf}), 0).read<i32>()[0], 0);
  EXPECT_EQ(matrix::argmax(from<f32>({4}, {1, 7, 7, 7}), 0).read<i32>()[0], 1);
}

TEST_P(Behaviour, SumsOfNarrowFloatsDoNotStopGrowing) {
  for (DType t : {DType::F16, DType::BF16}) {
    const Matrix ones = matrix::ones(engine(), {4096}, t);
    EXPECT_EQ(matrix::sum(ones).item(), 4096) << token(t);
    EXPECT_EQ(matrix::mean(ones).item(), 1) << token(t);
  }
  const i64 n = std::string_view(GetParam()) == "cpu" ? 1 << 25 : 1 << 20;
  const Matrix ones = matrix::copy(matrix::ones(engine(), {n}));
  EXPECT_EQ(matrix::sum(ones).item(), static_cast<f32>(n));
  EXPECT_EQ(matrix::mean(ones).item(), 1);
}

TEST_P(Behaviour, TanhAndErfSaturateFarOut) {
  const Matrix x = from<f32>({6}, {-13.24f, -50, -1e4f, 20.625f, 1e4f, 1e30f});
  EXPECT_EQ(matrix::tanh(x).read_f32(), (std::vector<f32>{-1, -1, -1, 1, 1, 1}));
  EXPECT_EQ(matrix::erf(x).read_f32(), (std::vector<f32>{-1, -1, -1, 1, 1, 1}));
}

OA_ON_DEVICES(Behaviour);

TEST(Determinism, BitsDependNeitherOnTheThreadsNorOnTheRun) {
  const std::vector<f32> v = random_f32(3, 300 * 700);
  std::vector<std::vector<f32>> first;
  for (u32 threads : {1u, 2u, 3u, 8u, 1u}) {
    EngineOptions options{.device = "cpu"};
    options.device_options.threads = threads;
    Engine e = Engine::open(options);
    const Matrix x = Matrix::from_f32(e, {300, 700}, v);
    const std::vector<std::vector<f32>> results = {
        matrix::sum(x).read_f32(),         matrix::sum(x, 0).read_f32(),
        matrix::softmax(x).read_f32(),     matrix::log_sum_exp(x, 0).read_f32(),
        matrix::variance(x, 1).read_f32(), matrix::mat_mul_nt(x, x).read_f32()};
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i], first[i]) << i;
  }
}

}  // namespace
}  // namespace oa::test
