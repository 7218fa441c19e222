// y = a*b + tanh(a) as a loop of g++ -O3 -march=native with glibc's vector math and OpenMP, and the
// copy rate of the machine. Built with -ffast-math, without which glibc offers no vector tanhf.
#include <immintrin.h>
#include <omp.h>

#include <cmath>
#include <cstring>

#include "bench/harness.h"

namespace {

void fused(const float* a, const float* b, float* y, long count) {
#pragma omp parallel for simd schedule(static)
  for (long i = 0; i < count; ++i) y[i] = a[i] * b[i] + tanhf(a[i]);
}

void copy_with_memcpy(const float* from, float* to, long count) {
#pragma omp parallel
  {
    const long part = count / omp_get_num_threads();
    const long begin = part * omp_get_thread_num();
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(part) * sizeof(float));
  }
}

// Past the caches: stores that do not read their line first.
void copy_with_streams(const float* from, float* to, long count) {
#pragma omp parallel for schedule(static)
  for (long i = 0; i < count; i += 8) _mm256_stream_ps(to + i, _mm256_load_ps(from + i));
}

float* allocate(long count, std::uint64_t seed) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  float* memory = static_cast<float*>(std::aligned_alloc(4096, bytes));
  const std::vector<float> values = bench::random_floats(static_cast<std::size_t>(count), seed);
  std::memcpy(memory, values.data(), bytes);
  return memory;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options = bench::parse(argc, argv);
  const struct {
    const char* name;
    long count;
  } cases[] = {{"16M", 16l << 20}, {"32K", 32l << 10}};
  for (const auto& [name, count] : cases) {
    if (!options.wants(name)) continue;
    float* a = allocate(count, 1);
    float* b = allocate(count, 2);
    float* y = allocate(count, 3);
    const auto rate = [&](auto&& once, double bytes_per_element) {
      const double seconds = bench::seconds_per_call(
          [&](int calls) {
            for (int i = 0; i < calls; ++i) once();
          },
          options.seconds);
      return bytes_per_element * static_cast<double>(count) / seconds * 1e-9;
    };
    bench::report(name, "g++ loop", rate([&] { fused(a, b, y, count); }, 12), "GB/s");
    const double plain = rate([&] { copy_with_memcpy(a, y, count); }, 8);
    const double streams = rate([&] { copy_with_streams(a, y, count); }, 8);
    bench::report(name, "copy", std::max(plain, streams), "GB/s");
    std::free(a);
    std::free(b);
    std::free(y);
  }
}
