// The same bits in every run and for every number of threads, on shapes that are cut into pieces.
#include <cmath>
#include <limits>

#include "oa/matrix/index.h"
#include "oa/matrix/moe.h"
#include "oa/matrix/random.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/scan.h"
#include "oa/matrix/sort.h"
#include "tests/matrix/devices.h"

namespace oa::matrix {
namespace {

struct Results {
  std::vector<f32> scattered, running, dropped, sorted;
  std::vector<i32> order, classes;
  std::vector<u32> rows;
  bool operator==(const Results&) const = default;
};

Results compute(Engine& engine) {
  const auto x = test::random_f32(1, 60000);
  const auto at = test::random_i32(2, 20000, 0, 999);
  const auto load = [&]<class T>(const Shape& s, const std::vector<T>& v) {
    return Matrix::from_slice<T>(engine, s, std::span<const T>(v));
  };
  const Matrix values = load({20000, 3}, x), indices = load({20000}, at);
  Results r;
  r.scattered = scatter_add_rows(1000, indices, values).read_f32();
  r.running = cumsum(values.reshape({60000}), 0).read_f32();
  r.dropped = dropout(values, 0.3, 5).read_f32();
  r.sorted = sort(values.reshape({2, 30000}), -1).read_f32();
  r.order = argsort(indices, 0, true).read<i32>();
  r.classes = sample_logits(values.reshape({60, 1000}), {.top_p = 0.8}, 7).read<i32>();
  r.rows = moe_expert_plan(indices.reshape({10000, 2}), 1000).packed_slot.read<u32>();
  return r;
}

TEST(Determinism, ThreadsAndRunsGiveTheSameBits) {
  std::optional<Results> want;
  for (u32 threads : {1u, 2u, 3u, 1u}) {
    Engine engine = Engine::open({.device = "cpu", .device_options = {.threads = threads}});
    const Results first = compute(engine);
    EXPECT_TRUE(first == compute(engine)) << threads;
    if (!want) want = first;
    EXPECT_TRUE(first == *want) << threads;
  }
}

class Nan : public test::OnDevice {};
OA_ON_DEVICES(Nan);

TEST_P(Nan, WinsInMaximaAndTheirPositions) {
  const f32 nan = std::numeric_limits<f32>::quiet_NaN(), inf = std::numeric_limits<f32>::infinity();
  const auto check = [&](const std::vector<f32>& x, i32 position) {
    const Matrix m = from<f32>({static_cast<i64>(x.size())}, x);
    EXPECT_TRUE(std::isnan(max(m).item()));
    EXPECT_EQ(argmax(m, 0).read<i32>()[0], position);
    EXPECT_EQ(top_k(m, 1).indices.read<i32>()[0], position);
    EXPECT_EQ(argsort(m, 0, true).read<i32>()[0], position);
  };
  check({3, nan, 1, 5}, 1);
  check({1, 2, nan}, 2);
  check({inf, nan, -inf}, 1);
  check(std::vector<f32>(58, nan), 0);
}

}  // namespace
}  // namespace oa::matrix
