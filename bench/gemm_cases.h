// The products that bench_gemm and its peers measure. C is M x N, the sum runs over K; a transposed
// A is stored K x M, a transposed B N x K, all row-major.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace bench {

struct GemmCase {
  int m, n, k;
  bool a_transposed, b_transposed;

  std::string name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) +
           (a_transposed   ? " AtB"
            : b_transposed ? " ABt"
                           : " AB");
  }
  double flops() const { return 2.0 * m * n * k; }
};

inline std::vector<GemmCase> gemm_cases() {
  constexpr std::array<std::array<int, 3>, 7> shapes = {{{1024, 256, 64},
                                                         {1024, 64, 256},
                                                         {1024, 32, 32},
                                                         {1024, 32, 96},
                                                         {512, 512, 512},
                                                         {1024, 1024, 1024},
                                                         {2048, 2048, 2048}}};
  std::vector<GemmCase> cases;
  for (const auto& [m, n, k] : shapes) {
    cases.push_back({m, n, k, false, false});
    cases.push_back({m, n, k, true, false});
    cases.push_back({m, n, k, false, true});
  }
  return cases;
}

}  // namespace bench
