#include <algorithm>
#include <cmath>
#include <limits>

#include "oa/core/random.h"
#include "oa/matrix/random.h"
#include "tests/matrix/devices.h"

namespace oa::matrix {
namespace {

using test::error_of;

class Sample : public test::OnDevice {
 protected:
  // One row, several numbers u.
  std::vector<i32> draw(const std::vector<f32>& row, const std::vector<f32>& u,
                        const SampleOptions& o = {}) {
    std::vector<f32> rows;
    for (size_t i = 0; i < u.size(); ++i) rows.insert(rows.end(), row.begin(), row.end());
    const auto r = static_cast<i64>(u.size());
    return sample_logits_at(from<f32>({r, static_cast<i64>(row.size())}, rows), from<f32>({r}, u),
                            o)
        .read<i32>();
  }
};
OA_ON_DEVICES(Sample);

constexpr f32 kInf = std::numeric_limits<f32>::infinity();
constexpr f32 kNan = std::numeric_limits<f32>::quiet_NaN();
constexpr f32 kAlmostOne = 1 - 0x1p-24f;

TEST_P(Sample, InvertsTheDistribution) {
  const std::vector<f32> row = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  EXPECT_EQ(draw(row, {0, 0.12f, 0.13f, 0.37f, 0.38f, kAlmostOne}),
            (std::vector<i32>{0, 0, 1, 1, 2, 2}));
  // At half the temperature the weights are squared: 1, 4, 25.
  EXPECT_EQ(draw(row, {0.03f, 0.04f, 0.16f, 0.17f}, {.temperature = 0.5}),
            (std::vector<i32>{0, 1, 1, 2}));
  EXPECT_EQ(draw(row, {0.5f, 0.9f}, {.temperature = 0}), (std::vector<i32>{2, 2}));
  EXPECT_EQ(draw({1, 7, 7}, {0.9f}, {.temperature = -1}), (std::vector<i32>{1}));
}

TEST_P(Sample, NeverAClassOfProbabilityZero) {
  for (i64 n : {i64{2}, i64{5}, i64{37}, 300 * stride(1)}) {
    std::vector<f32> row(static_cast<size_t>(n), -kInf);
    const size_t only = static_cast<size_t>(n) / 2;
    row[only] = -3;
    for (const SampleOptions& o :
         {SampleOptions{}, SampleOptions{.top_k = n - 1}, SampleOptions{.top_p = 0.9}}) {
      EXPECT_EQ(draw(row, {0, kAlmostOne, 1, kNan}, o),
                std::vector<i32>(4, static_cast<i32>(only)));
    }
  }
  // The first and the last class are impossible; so are classes whose weight underflows.
  EXPECT_EQ(draw({-kInf, 1, -200, 1, -300, -kInf}, {0, kAlmostOne}), (std::vector<i32>{1, 3}));
}

TEST_P(Sample, RoundingNeverPicksAnImpossibleClass) {
  // Weights that do not add up exactly, between impossible ones.
  std::vector<f32> row;
  for (int i = 0; i < 700; ++i) {
    row.push_back(i % 3 == 1 ? std::log(0.1f + static_cast<f32>(i % 11)) : -kInf);
  }
  std::vector<f32> u = {0, kAlmostOne};
  for (int i = 0; i < 60; ++i) u.push_back(unit_from_word(static_cast<u32>(i) * 0x9e3779b9u));
  for (i32 c : draw(row, u)) EXPECT_EQ(c % 3, 1);
}

TEST_P(Sample, InfinitiesAndNan) {
  EXPECT_EQ(draw({1, kInf, 3}, {0, 0.5f, kAlmostOne}), (std::vector<i32>{1, 1, 1}));
  EXPECT_EQ(draw({kInf, 0, kInf}, {0.2f, 0.8f}), (std::vector<i32>{0, 2}));
  EXPECT_EQ(draw({1, kNan, 3}, {0.1f, 0.9f}), (std::vector<i32>{1, 1}));
  EXPECT_EQ(draw({1, kNan, 3}, {0.1f, 0.9f}, {.top_k = 2}), (std::vector<i32>{1, 1}));
  EXPECT_EQ(draw({-kInf, -kInf}, {0.2f, 0.8f}), (std::vector<i32>{0, 1}));  // equal weights
  EXPECT_EQ(draw({5}, {0, kAlmostOne}), (std::vector<i32>{0, 0}));
}

TEST_P(Sample, TopKAndTopP) {
  const std::vector<f32> row = {std::log(2.0f), std::log(4.0f), std::log(1.0f), std::log(3.0f)};
  // Greatest first: classes 1, 3, 0, 2 with shares 0.4, 0.3, 0.2, 0.1.
  EXPECT_EQ(draw(row, {0.57f, 0.58f, kAlmostOne}, {.top_k = 2}), (std::vector<i32>{1, 3, 3}));
  EXPECT_EQ(draw(row, {0.39f, 0.69f, 0.89f, 0.91f}, {.top_k = 9}),
            draw(row, {0.39f, 0.69f, 0.89f, 0.91f}));
  EXPECT_EQ(draw(row, {0, kAlmostOne}, {.top_p = 0.39}), (std::vector<i32>{1, 1}));
  EXPECT_EQ(draw(row, {0.57f, 0.58f, kAlmostOne}, {.top_p = 0.41}), (std::vector<i32>{1, 3, 3}));
  EXPECT_EQ(draw(row, {kAlmostOne}, {.top_p = 0.71}), (std::vector<i32>{0}));
  EXPECT_EQ(draw(row, {0, kAlmostOne}, {.top_p = 0}), (std::vector<i32>{1, 1}));
  EXPECT_EQ(draw(row, {kAlmostOne}, {.top_k = 3, .top_p = 0.999}), (std::vector<i32>{0}));
  // Ties: the lower index comes first.
  EXPECT_EQ(draw({1, 1, 1}, {0, kAlmostOne}, {.top_k = 1}), (std::vector<i32>{0, 0}));
}

TEST_P(Sample, DrawsOneNumberPerRow) {
  const std::vector<f32> row = {0, 0, 0, 0, 0};
  std::vector<f32> rows;
  for (int i = 0; i < 7; ++i) rows.insert(rows.end(), row.begin(), row.end());
  const Matrix logits = from<f32>({7, 5}, rows);
  std::vector<f32> u;
  for (u32 r = 0; r < 7; ++r) {
    u.push_back(unit_from_word(philox4x32({r / 4, 0, 0, 0}, philox_key(9))[r % 4]));
  }
  EXPECT_EQ(sample_logits(logits, {}, 9).read<i32>(), draw(row, u));
  EXPECT_EQ(sample_logits(from<f32>({5}, row), {}, 9).read<i32>(), draw(row, {u[0]}));
  const u64 compiled = engine().counters().programs_compiled;
  sample_logits(logits, {.temperature = 0.3}, 10).read<i32>();
  EXPECT_EQ(engine().counters().programs_compiled, compiled);  // only numbers changed
  EXPECT_EQ(sample_logits(from<f32>({0, 5}, {}), {}, 9).shape(), (Shape{0}));
}

TEST_P(Sample, CapturedProgramsDrawFreshClasses) {
  const Matrix step = from<u32>({1}, {0});
  const Matrix logits = from<f32>({16, 50}, std::vector<f32>(800, 0));
  Matrix c;
  const ExecutionPlan plan = engine().capture([&] {
    c = sample_logits(logits, {}, {4, step});
    advance(step);
    return std::vector<Matrix>{c};
  });
  for (u32 replay = 0; replay < 3; ++replay) {
    engine().submit(plan);
    const auto got = c.read<i32>();
    EXPECT_EQ(got, sample_logits(logits, {}, {4, from<u32>({1}, {replay})}).read<i32>());
  }
}

TEST_P(Sample, Rejects) {
  const Matrix x = from<f32>({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(error_of([&] { sample_logits(x, {.top_k = -1}, 1); }),
            "sample_logits: bad top_k, got -1, expected 0 or more");
  EXPECT_EQ(error_of([&] { sample_logits(from<i32>({2}, {1, 2}), {}, 1); }),
            "sample_logits: bad logits, got i32 [2], expected a float [V] or [R, V] with V of 1 or "
            "more");
  EXPECT_EQ(error_of([&] { sample_logits_at(x, x, {}); }),
            "sample_logits: the random numbers do not fit, expected f32 [2]");
  EXPECT_EQ(error_of([&] { sample_logits(x, {.temperature = std::nan("")}, 1); }),
            "sample_logits: bad temperature, got nan, expected a number");
}

}  // namespace
}  // namespace oa::matrix
