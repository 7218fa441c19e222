// Compiled for the machine at hand: 16 floats are one vector where it has AVX-512, else several.
#include "bench/support/fma_peak.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace bench {
namespace {

using Vector = float __attribute__((vector_size(64)));
constexpr int kChains = 12;
constexpr long kTurns = 10'000'000;

float spin() {
  Vector sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = Vector{} + static_cast<float>(i);
  const Vector factor = Vector{} + 0.999f, term = Vector{} + 1e-3f;
  for (long n = 0; n < kTurns; ++n) {
    for (Vector& s : sums) s = s * factor + term;
  }
  for (int i = 1; i < kChains; ++i) sums[0] += sums[i];
  return sums[0][0];
}

}  // namespace

double fma_peak(int threads) {
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<float> results(static_cast<unsigned>(threads));
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> list;
    for (float& r : results) list.emplace_back([&r] { r = spin(); });
    for (std::thread& t : list) t.join();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, 2.0 * kTurns * kChains * 16 * threads / seconds * 1e-9);
  }
  return best;
}

}  // namespace bench
