#include "oa/matrix/random.h"

#include <cmath>
#include <limits>

#include "oa/core/random.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "tests/matrix/devices.h"

namespace oa::matrix {
namespace {

using test::error_of;

class Random : public test::OnDevice {};
OA_ON_DEVICES(Random);

u32 word(u64 seed, u32 stream, u64 step, u64 element) {
  const oa::PhiloxCounter w = philox4x32(
      {static_cast<u32>(element / 4), stream, static_cast<u32>(step), static_cast<u32>(step >> 32)},
      philox_key(seed));
  return w[element % 4];
}

std::vector<f32> uniforms(u64 seed, u32 stream, u64 step, size_t n) {
  std::vector<f32> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = unit_from_word(word(seed, stream, step, i));
  return v;
}

TEST_P(Random, UniformIsTheHostsFunctionOfSeedStreamStepAndElement) {
  const u64 big = 0xfedcba9876543210ull;  // halves beyond what F32 holds
  for (u64 seed : {u64{0}, u64{1}, u64{16777217}, big, ~u64{0}}) {
    EXPECT_EQ(uniform(engine(), {3, 7}, 0, 1, seed).read_f32(), uniforms(seed, 0, 0, 21));
  }
  EXPECT_EQ(uniform(engine(), {5}, 0, 1, {big, 0xdeadbeefu}).read_f32(),
            uniforms(big, 0xdeadbeefu, 0, 5));
  const Matrix step = from<u32>({1}, {7});
  EXPECT_EQ(uniform(engine(), {9}, 0, 1, {3, step}).read_f32(), uniforms(3, 0, 7, 9));
  const Matrix wide = from<u32>({2}, {7, 9});
  EXPECT_EQ(uniform(engine(), {9}, 0, 1, {3, wide, 5}).read_f32(),
            uniforms(3, 5, (u64{9} << 32) + 7, 9));
  for (size_t n = 1; n <= 40; n += static_cast<size_t>(stride(13))) {
    EXPECT_EQ(uniform(engine(), {static_cast<i64>(n)}, 0, 1, 11).read_f32(), uniforms(11, 0, 0, n));
  }
}

TEST_P(Random, UniformIsAFunctionOfThePositionWhereverItIsRead) {
  const auto u = uniforms(5, 0, 0, 30);
  const Matrix m = uniform(engine(), {5, 6}, 0, 1, 5);
  EXPECT_EQ(slice(permute(m, {1, 0}), 0, 4, 5).read_f32(),
            (std::vector<f32>{u[4], u[10], u[16], u[22], u[28]}));
}

TEST_P(Random, UniformStaysInItsInterval) {
  const f32 low = 1, high = std::nextafter(1.0f, 2.0f);  // only `low` lies in between
  for (f32 x : uniform(engine(), {1000}, low, high, 1).read_f32()) EXPECT_EQ(x, low);
  const f32 most = std::numeric_limits<f32>::max();
  f32 least = 0, greatest = 0;
  for (f32 x : uniform(engine(), {1000}, -most, most, 1).read_f32()) {
    ASSERT_TRUE(std::isfinite(x));
    least = std::min(least, x);
    greatest = std::max(greatest, x);
  }
  EXPECT_LT(least, -0.9f * most);
  EXPECT_GT(greatest, 0.9f * most);
  for (f32 x : uniform(engine(), {1000}, -3, -2, 9).read_f32()) {
    ASSERT_GE(x, -3);
    ASSERT_LT(x, -2);
  }
}

TEST_P(Random, NormalMatchesTheHost) {
  const auto got = normal(engine(), {4001}, 1.5, 2, 77).read_f32();
  f64 sum = 0, squares = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t first = i / 2 * 2;
    const auto pair = normal_pair(word(77, 0, 0, first), word(77, 0, 0, first + 1));
    const f32 z = i % 2 == 0 ? pair.first : pair.second;
    ASSERT_NEAR(got[i], 1.5f + 2 * z, 1e-5) << i;
    sum += got[i];
    squares += (got[i] - 1.5) * (got[i] - 1.5);
  }
  EXPECT_NEAR(sum / 4001, 1.5, 0.1);
  EXPECT_NEAR(squares / 4001, 4, 0.3);
  EXPECT_EQ(normal(engine(), {3}, 4, 0, 1).read_f32(), (std::vector<f32>{4, 4, 4}));
}

TEST_P(Random, Templates) {
  const Matrix x = from<i32>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Matrix u = philox_uniform(x, 0, 1, 8);
  EXPECT_EQ(u.shape(), (Shape{2, 3}));
  EXPECT_EQ(u.dtype(), DType::F32);
  EXPECT_EQ(u.read_f32(), uniforms(8, 0, 0, 6));
  EXPECT_EQ(philox_normal(x, 0, 1, 8).shape(), (Shape{2, 3}));
  EXPECT_EQ(uniform(engine(), {0, 3}, 0, 1, 1).read_f32().size(), 0u);
  EXPECT_EQ(uniform(engine(), {}, 0, 1, 4).read_f32(), uniforms(4, 0, 0, 1));
}

TEST_P(Random, WithoutASeedTheEngineGivesTheNextOne) {
  const auto a = uniform(engine(), {8}).read_f32();
  const auto b = uniform(engine(), {8}).read_f32();
  EXPECT_NE(a, b);
  // The stream belongs to the engine's seed.
  Engine one = Engine::open({.device = test::device_under_test(GetParam()), .seed = 5});
  Engine two = Engine::open({.device = test::device_under_test(GetParam()), .seed = 5});
  const u64 first =
      Engine::open({.device = test::device_under_test(GetParam()), .seed = 5}).next_seed();
  const auto from_one = uniform(one, {8}).read_f32();
  EXPECT_EQ(from_one, uniform(two, {8}).read_f32());
  EXPECT_EQ(from_one, uniforms(first, 0, 0, 8));
  EXPECT_NE(uniform(one, {8}).read_f32(), from_one);
  one.set_rng_seed(5);
  EXPECT_EQ(uniform(one, {8}).read_f32(), from_one);
}

TEST_P(Random, ANewSeedCompilesNothing) {
  uniform(engine(), {13}, 0, 1, 1).read_f32();
  const auto before = engine().counters().programs_compiled;
  for (u64 seed = 2; seed < 10; ++seed) {
    uniform(engine(), {13}, 0, static_cast<f64>(seed), seed).read_f32();
  }
  EXPECT_EQ(engine().counters().programs_compiled, before);
}

TEST_P(Random, EqualAndDifferentDrawsInOneBatch) {
  const Matrix a = uniform(engine(), {9}, 0, 1, 1), b = uniform(engine(), {9}, 0, 1, 1),
               c = uniform(engine(), {9}, 0, 1, 2);
  const Matrix d = a - b, e = a - c;
  EXPECT_EQ(d.read_f32(), std::vector<f32>(9, 0));
  EXPECT_NE(e.read_f32(), std::vector<f32>(9, 0));
}

TEST_P(Random, CapturedProgramsDrawFreshNumbers) {
  const Matrix step = from<u32>({1}, {0});
  const Matrix x = from<f32>({16}, std::vector<f32>(16, 1));
  Matrix u, d;
  const ExecutionPlan plan = engine().capture([&] {
    u = uniform(engine(), {16}, 0, 1, {42, step});
    d = dropout(x, 0.5, {42, step, 1});
    advance(step);
    return std::vector<Matrix>{u, d};
  });
  for (u64 replay = 0; replay < 4; ++replay) {
    engine().submit(plan);
    EXPECT_EQ(u.read_f32(), uniforms(42, 0, replay, 16));
    const auto mask = uniforms(42, 1, replay, 16);
    const auto kept = d.read_f32();
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(kept[i], mask[i] >= 0.5f ? 2 : 0);
  }
  EXPECT_EQ(step.read<u32>()[0], 4u);
  EXPECT_EQ(error_of([&] {
              engine().capture([&] { return std::vector<Matrix>{uniform(engine(), {2})}; });
            }),
            "philox_uniform: a captured program would repeat a value drawn on the host at each "
            "replay, expected the form that takes its counter from device memory");
}

TEST_P(Random, AdvanceCarriesIntoTheHighWord) {
  const Matrix step = from<u32>({2}, {0xffffffffu, 3});
  advance(step);
  EXPECT_EQ(step.read<u32>(), (std::vector<u32>{0, 4}));
  advance(step);
  EXPECT_EQ(step.read<u32>(), (std::vector<u32>{1, 4}));
  EXPECT_EQ(error_of([&] { advance(from<u32>({3}, {1, 2, 3})); }),
            "advance: bad step counter, expected u32 [1] or [2]");
}

TEST_P(Random, Dropout) {
  std::vector<f32> v = test::random_f32(3, 37);
  v[5] = std::numeric_limits<f32>::quiet_NaN();
  v[6] = std::numeric_limits<f32>::infinity();
  const Matrix x = from<f32>({37}, v);
  const auto same = [](f32 a, f32 b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  for (f64 p : {0.1, 0.5, 0.9}) {
    const auto u = uniforms(6, 0, 0, 37);
    const auto got = dropout(x, p, 6).read_f32();
    for (size_t i = 0; i < v.size(); ++i) {
      const f32 kept = v[i] * static_cast<f32>(1 / (1 - p));
      EXPECT_TRUE(same(got[i], u[i] >= static_cast<f32>(p) ? kept : 0)) << p << " " << i;
    }
  }
  EXPECT_EQ(dropout(x, 1, 6).read_f32(), std::vector<f32>(37, 0));
  const u64 before = engine().counters().flushes;
  const Matrix nothing = dropout(x, 0, {});
  EXPECT_EQ(nothing.tensor().get(), x.tensor().get());
  EXPECT_EQ(engine().counters().flushes, before);
  // F16 rounds the product once.
  const Matrix half = cast(from<f32>({8}, std::vector<f32>(8, 3)), DType::F16);
  for (f32 y : cast(dropout(half, 0.25, 1), DType::F32).read_f32()) EXPECT_TRUE(y == 0 || y == 4);
}

TEST_P(Random, Rejects) {
  const Matrix x = from<f32>({2}, {1, 2});
  EXPECT_EQ(error_of([&] { dropout(x, 1.5, 1); }),
            "dropout: bad probability, got 1.5, expected 0 to 1");
  EXPECT_EQ(error_of([&] { dropout(x, -0.1, 1); }),
            "dropout: bad probability, got -0.1, expected 0 to 1");
  EXPECT_EQ(error_of([&] { dropout(x, std::nan(""), 1); }),
            "dropout: bad probability, got nan, expected 0 to 1");
  EXPECT_EQ(error_of([&] { dropout(from<i32>({1}, {1}), 0.5, 1); }),
            "dropout: operand 0 has the wrong dtype, got i32, expected a float");
  EXPECT_EQ(error_of([&] { philox_uniform(x, 1, 1, 1); }),
            "philox_uniform: bad bounds, got 1 to 1, expected finite low < high");
  EXPECT_EQ(error_of([&] { philox_uniform(x, 0, 1, {1, x}); }),
            "philox_uniform: bad step counter, got f32 [2], expected u32 [1] or [2]");
  EXPECT_EQ(error_of([&] { philox_normal(x, 0, -1, 1); }),
            "philox_normal: bad parameters, got mean 0 and stddev -1, expected finite ones and "
            "stddev >= 0");
  EXPECT_EQ(error_of([&] { uniform(engine(), {1ll << 35}, 0, 1, 1); }),
            "philox_uniform: too many elements, got shape [34359738368], expected at most 2^34 "
            "elements");
  EXPECT_EQ(error_of([&] { philox_uniform(Matrix(), 0, 1, 1); }),
            "Matrix: the value is empty, expected one with elements");
}

}  // namespace
}  // namespace oa::matrix
