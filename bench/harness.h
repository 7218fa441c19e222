// What every benchmark program and C++ peer shares: options, timing, and results as JSON lines.
//
// A program measures its cases once and ends; scripts/bench runs the programs of a benchmark in
// turns, several rounds, and compares medians over the rounds. It includes nothing of OA, so that
// peers stay free of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

struct Options {
  double seconds = 0.1;  // measuring time of one case
  std::string filter;    // only cases whose name contains this
  int round = 0;         // which of scripts/bench's rounds this is

  bool wants(std::string_view name) const { return name.find(filter) != std::string_view::npos; }
};

inline Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (i + 1 < argc && flag == "--seconds") {
      options.seconds = std::atof(argv[i + 1]);
    } else if (i + 1 < argc && flag == "--filter") {
      options.filter = argv[i + 1];
    } else if (i + 1 < argc && flag == "--round") {
      options.round = std::atoi(argv[i + 1]);
    } else {
      std::fprintf(stderr,
                   "%s: wrong option %s, expected --seconds S, --filter TEXT or --round N\n",
                   argv[0], argv[i]);
      std::exit(2);
    }
  }
  return options;
}

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Median seconds of one call. `run(n)` makes n calls and returns when their work is done; n is
// chosen so that a sample is long against the clock, and the first calls only warm up.
template <class Run>
double seconds_per_call(Run run, double budget) {
  run(1);
  double start = now();
  run(1);
  const double once = std::max(now() - start, 1e-8);
  const int calls = std::clamp(static_cast<int>(budget / 25 / once), 1, 1000);
  run(calls);
  std::vector<double> samples;
  const double begin = now();
  while (samples.size() < 5 || now() - begin < budget) {
    start = now();
    run(calls);
    samples.push_back((now() - start) / calls);
  }
  return median(samples);
}

// Numbers in (-1, 1) that depend on nothing but the seed.
inline std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (float& value : values) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    value = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f;
  }
  return values;
}

// One result. Units in "/s" mean that more is better, all others that less is.
inline void report(std::string_view name, std::string_view who, double value,
                   std::string_view unit) {
  std::printf(R"({"case": "%.*s", "who": "%.*s", "value": %.9g, "unit": "%.*s"})"
              "\n",
              static_cast<int>(name.size()), name.data(), static_cast<int>(who.size()), who.data(),
              value, static_cast<int>(unit.size()), unit.data());
  std::fflush(stdout);
}

// One line for people, such as the version and kernels of a library that is measured.
inline void note(std::string_view text) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

}  // namespace bench
