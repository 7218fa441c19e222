// The products of training steps: batches of attention, skinny products with what stands in front
// of them and behind, weight gradients, and sums over rows; each a captured plan.
#include <functional>

#include "bench/harness.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"

using namespace oa;

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  Engine engine = Engine::open();
  if (options.round == 0) bench::note("oa: " + engine.device_info().name);
  u64 seed = 0;
  const auto random = [&](const Shape& shape) {
    return Matrix::from_f32(
        engine, shape, bench::random_floats(static_cast<std::size_t>(shape.elements()), ++seed));
  };
  const auto measure = [&](const std::string& name, double work, std::string_view unit,
                           const std::function<Matrix()>& result) {
    if (!options.wants(name)) return;
    const ExecutionPlan plan = engine.capture([&] { return std::vector<Matrix>{result()}; });
    const double seconds = bench::seconds_per_call(
        [&](int calls) {
          Event last;
          for (int i = 0; i < calls; ++i) last = engine.submit(plan);
          last.wait();
        },
        options.seconds);
    bench::report(name, "oa", work / seconds * 1e-9, unit);
  };

  struct Attention {
    i64 batch, heads, length, head;
  };
  for (const auto& [batch, heads, length, head] :
       {Attention{64, 1, 16, 32}, Attention{64, 4, 16, 8}, Attention{16, 4, 128, 32},
        Attention{4, 4, 100, 20}, Attention{2, 4, 512, 64}}) {
    const i64 all = batch * heads;
    const std::string size =
        std::to_string(all) + "x" + std::to_string(length) + "x" + std::to_string(head);
    const double flops = 2.0 * static_cast<double>(all * length * length * head);
    const Matrix q = random({all, length, head}), k = random({all, length, head});
    const Matrix p = random({all, length, length});
    measure(size + " q.kT", flops, "GFLOP/s", [&] { return matrix::mat_mul_nt(q, k); });
    measure(size + " p.v", flops, "GFLOP/s", [&] { return matrix::mat_mul(p, k); });
    measure(size + " pT.v", flops, "GFLOP/s", [&] { return matrix::mat_mul_tn(p, k); });
    // Heads lie side by side in a row, as a linear layer leaves them.
    const Matrix x = random({batch, length, heads * head}),
                 y = random({batch, length, heads * head});
    const auto split = [&](const Matrix& m) {
      return m.reshape({batch, length, heads, head}).transpose(1, 2);
    };
    measure(size + " q.kT of heads, scaled", flops, "GFLOP/s",
            [&] { return matrix::mat_mul_nt(split(x) * 0.125f, split(y)); });
    const Matrix weights = random({batch, heads, length, length});
    const Matrix values = random({batch, heads, length, head});
    const Matrix out = random({heads * head, heads * head});
    measure(size + " p.v of heads", flops, "GFLOP/s",
            [&] { return matrix::mat_mul(weights, split(y)); });
    measure(size + " heads.w",
            2.0 * static_cast<double>(batch * length * heads * head) * heads * head, "GFLOP/s",
            [&] {
              return matrix::mat_mul(values.transpose(1, 2).reshape({batch * length, heads * head}),
                                     out);
            });
  }

  struct Size {
    i64 m, n, k;
  };
  for (const auto& [m, n, k] : {Size{1024, 96, 32}, Size{1024, 64, 32}, Size{1024, 32, 64},
                                Size{1024, 256, 64}, Size{1024, 256, 32}, Size{2048, 384, 128}}) {
    const std::string size = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
    const double flops = 2.0 * static_cast<double>(m * n * k);
    const Matrix x = random({m, k}), w = random({k, n}), bias = random({n}), dy = random({m, n});
    measure(size + " x.w + b", flops, "GFLOP/s", [&] { return matrix::mat_mul(x, w) + bias; });
    measure(size + " dy.wT", flops, "GFLOP/s", [&] { return matrix::mat_mul_nt(dy, w); });
    measure(size + " xT.dy", flops, "GFLOP/s", [&] { return matrix::mat_mul_tn(x, dy); });
    measure(size + " relu(x).w", flops, "GFLOP/s",
            [&] { return matrix::mat_mul(matrix::clamp_min(x, 0), w); });
    measure(size + " sum of dy", 4.0 * static_cast<double>(m * n), "GB/s",
            [&] { return matrix::sum(dy, 0); });
  }

  for (const auto& [rows, columns] : {std::pair<i64, i64>{1024, 64},
                                      {2048, 128},
                                      {2048, 512},
                                      {16384, 64},
                                      {8192, 256},
                                      {65536, 32}}) {
    const Matrix x = random({rows, columns});
    measure("sum of rows " + std::to_string(rows) + "x" + std::to_string(columns),
            4.0 * static_cast<double>(rows * columns), "GB/s", [&] { return matrix::sum(x, 0); });
  }

  // One token: rows of one, weights either way round, and its attention over what came before.
  for (const auto& [n, k] : {std::pair<i64, i64>{512, 128}, {2048, 512}}) {
    const std::string size = "1x" + std::to_string(n) + "x" + std::to_string(k);
    const double bytes = 4.0 * static_cast<double>(n * k);
    const Matrix x = random({1, k}), w = random({k, n}), u = random({n, k}), y = random({k, 1});
    measure(size + " x.w", bytes, "GB/s", [&] { return matrix::mat_mul(x, w); });
    measure(size + " x.uT", bytes, "GB/s", [&] { return matrix::mat_mul_nt(x, u); });
    measure(size + " u.y", bytes, "GB/s", [&] { return matrix::mat_mul(u, y); });
  }
  const Matrix q = random({16, 1, 32}), keys = random({16, 512, 32});
  measure("16x1x512x32 q.kT", 4.0 * 16 * 512 * 32, "GB/s",
          [&] { return matrix::mat_mul_nt(q, keys); });
}
