// Explanations, profiles and traces: what they say about small programs whose answer is known.
#include "oa/engine/explain.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "oa/core/file.h"
#include "oa/engine/profile_table.h"
#include "oa/engine/trace.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "tests/support/interpreter_device.h"

namespace oa {
namespace {

using nlohmann::json;
using Matrices = std::vector<Matrix>;
using Bound = Explanation::Bound;

// One FLOP and one byte a nanosecond, a dispatch of a microsecond.
MachineLimits round_limits() {
  return {.flops = 1e9, .copy = {{1000, 1e9}, {1'000'000, 1e9}}, .dispatch_seconds = 1e-6};
}
Matrix ones(const Engine& e, const Shape& shape) {
  return Matrix::from_f32(e, shape, std::vector<f32>(static_cast<size_t>(shape.elements()), 1));
}
bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Explain, SaysWhatRanWhyAndWhatStayedApart) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix x = ones(e, {64, 32}), w = ones(e, {32, 48});
  const ExecutionPlan plan =
      e.capture([&] { return Matrices{matrix::sum(matrix::exp(matrix::mat_mul(x, w) * 0.01))}; });
  const Explanation ex = explain(e, plan, {.runs = 2, .limits = round_limits()});
  const std::string text = to_text(ex);
  EXPECT_TRUE(has(text, "4 operations -> 2 groups -> ")) << text;
  EXPECT_TRUE(has(text, "not with 0: sum needs the finished sums of the product around exp"))
      << text;
  EXPECT_TRUE(has(text, "64 x 48 results, 32 terms each; tiles of ")) << text;
  EXPECT_TRUE(has(text, "median of 2 runs")) << text;
  EXPECT_TRUE(has(text, "reads exp.")) << text;
  for (std::string_view stage : {"semantic_validation", "fusion", "command_recording"}) {
    EXPECT_TRUE(has(text, stage)) << stage;
  }
  for (const Explanation::Timing& t : ex.timings) EXPECT_GT(t.measured, 0);
  EXPECT_GT(ex.wall_seconds, 0);
  // As data the same.
  const json j = json::parse(to_json(ex));
  EXPECT_EQ(j["schema"], "oa.explain.v1");
  ASSERT_EQ(j["stages"].size(), 11u);
  ASSERT_EQ(j["dispatches"].size(), plan.dispatch_count());
  ASSERT_EQ(j["boundaries"].size(), 1u);
  EXPECT_EQ(j["boundaries"][0]["obstacle"], "needs_whole");
  EXPECT_TRUE(j["dispatches"][0]["measured_seconds"].is_number());
  // The replays computed what the program computes.
  EXPECT_NEAR(plan.results()[0].read_f32()[0], 64 * 48 * std::exp(0.32), 1);
}

TEST(Explain, PredictsFromTheTighterLimit) {
  Engine e = Engine::open_on(std::make_unique<test::InterpreterDevice>(test::cpu_target()));
  const Matrix x = ones(e, {64, 64}), y = ones(e, {10'000}), z = ones(e, {4});
  const ExecutionPlan plan =
      e.capture([&] { return Matrices{matrix::mat_mul(x, x), y + y, z + 1.0}; });
  MachineLimits limits = round_limits();
  limits.copy = {{1, 1e10}};
  const Explanation ex = explain(e, plan, {.runs = 0, .limits = limits});
  ASSERT_EQ(ex.timings.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const graph::Evidence::DispatchInfo& d = ex.evidence->dispatches[i];
    const Explanation::Timing& t = ex.timings[i];
    EXPECT_EQ(t.measured, 0);
    if (d.label == "mat_mul") {
      EXPECT_EQ(t.bound, Bound::Arithmetic);
      EXPECT_NEAR(t.predicted, 1e-6 + 2.0 * 64 * 64 * 64 / 1e9, 1e-9);
    } else if (d.bytes_written == 16) {
      EXPECT_EQ(t.bound, Bound::Dispatch);
      EXPECT_NEAR(t.predicted, 1e-6, 1e-6);
    }
  }
  EXPECT_TRUE(json::parse(to_json(ex))["dispatches"][0]["measured_seconds"].is_null());
  // Without limits and runs there is nothing to predict from.
  const Explanation bare = explain(e, plan, {.runs = 0});
  EXPECT_TRUE(json::parse(to_json(bare))["dispatches"][0]["predicted_seconds"].is_null());
  EXPECT_FALSE(has(to_text(bare), "limits:"));
}

TEST(Limits, BandwidthIsReadBetweenTheMeasuredSizes) {
  const MachineLimits l{.flops = 1, .copy = {{1024, 100}, {4096, 50}}, .dispatch_seconds = 0};
  EXPECT_EQ(l.bandwidth(1), 100);
  EXPECT_EQ(l.bandwidth(1024), 100);
  EXPECT_EQ(l.bandwidth(2048), 75);
  EXPECT_EQ(l.bandwidth(4096), 50);
  EXPECT_EQ(l.bandwidth(1 << 30), 50);
  EXPECT_EQ(MachineLimits{}.bandwidth(5), 0);
}

TEST(Limits, AreMeasuredOnTheDevice) {
  Engine e = Engine::open({.device = "cpu"});
  const MachineLimits l = measure_limits(e);
  EXPECT_GT(l.flops, 1e8);
  EXPECT_GT(l.dispatch_seconds, 0);
  ASSERT_GE(l.copy.size(), 3u);
  for (size_t i = 0; i < l.copy.size(); ++i) {
    EXPECT_GT(l.copy[i].per_second, 1e6);
    if (i > 0) {
      EXPECT_GT(l.copy[i].bytes, l.copy[i - 1].bytes);
    }
  }
}

// --- Profile and trace ---

TEST(Profile, CountsRunsAndWritesATraceThatParses) {
  Engine e = Engine::open({.device = "cpu", .profile = true});
  const Matrix x = ones(e, {1000});
  for (int i = 0; i < 3; ++i) {
    const Matrix y = matrix::exp(x) + 1.0;
    y.read_f32();
  }
  const std::vector<KernelProfile> profile = e.profile();
  ASSERT_EQ(profile.size(), 1u);
  EXPECT_EQ(profile[0].count, 3u);
  EXPECT_EQ(profile[0].bytes, 3 * 8000);
  EXPECT_GT(profile[0].flops, 0);
  EXPECT_LE(profile[0].least_seconds * 3, profile[0].seconds * 1.0001);
  const std::string table = e.profile_table();
  EXPECT_TRUE(has(table, profile[0].label)) << table;
  EXPECT_TRUE(has(table, "100.0%")) << table;

  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / "oa explain test trace.json";
  e.write_trace(path);
  const std::vector<u8> bytes = read_file(path);
  std::filesystem::remove(path);
  const json trace = json::parse(bytes);
  u64 kernels = 0, stages = 0;
  f64 last_end = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "M") continue;
    ASSERT_EQ(event["ph"], "X");
    ASSERT_GE(event["ts"].get<f64>(), 0);
    ASSERT_GE(event["dur"].get<f64>(), 0);
    stages += event["name"] == "kernel_selection";
    if (event["cat"] != "kernel") continue;
    ++kernels;
    EXPECT_EQ(event["name"], profile[0].label);
    EXPECT_EQ(event["args"]["bytes"], 8000);
    EXPECT_GE(event["ts"].get<f64>(), last_end);
    last_end = event["ts"].get<f64>() + event["dur"].get<f64>();
  }
  EXPECT_EQ(kernels, 3u);
  EXPECT_EQ(stages, 1u);  // compiled once
}

TEST(Profile, WithoutItThereIsNoTrace) {
  Engine e = Engine::open_on(std::make_unique<test::InterpreterDevice>(test::cpu_target()));
  try {
    e.write_trace("/nonexistent/trace.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::FailedPrecondition);
    EXPECT_STREQ(error.what(),
                 "write_trace: the engine keeps no trace, expected one opened with "
                 "EngineOptions::profile");
  }
}

TEST(Trace, KeepsNamesThatAreNotTextAndCountsWhatItDrops) {
  Trace t;
  t.add({.name = "odd \"name\" \xff\n"});
  const json j = json::parse(t.chrome_json("dev\\ice"));
  EXPECT_EQ(j["traceEvents"].size(), 3u);
  EXPECT_EQ(j["otherData"]["dropped_spans"], 0);
  for (size_t i = 0; i < Trace::kMost; ++i) t.add({.name = "x"});
  EXPECT_EQ(t.spans().size(), Trace::kMost);
  EXPECT_EQ(t.dropped(), 1u);
}

TEST(Tables, NumbersHaveUnitsAndLongLabelsAreCut) {
  EXPECT_EQ(text_seconds(1.234e-3), "1.23 ms");
  EXPECT_EQ(text_seconds(45.6e-6), "45.6 us");
  EXPECT_EQ(text_seconds(0), "0 s");
  EXPECT_EQ(text_bytes(999), "999 B");
  EXPECT_EQ(text_bytes(123456), "123 kB");
  EXPECT_EQ(text_count(2.5e9), "2.50 G");
  EXPECT_EQ(text_count(12), "12");
  EXPECT_EQ(shortened("abcdefgh", 8), "abcdefgh");
  EXPECT_EQ(shortened("abcdefghi", 8), "abcde...");
  std::vector<KernelProfile> many(3);
  for (KernelProfile& k : many) k = {.label = "k", .count = 1, .seconds = 1};
  const std::string table = profile_table(many, 2);
  EXPECT_TRUE(has(table, "1 more")) << table;
  EXPECT_TRUE(has(table, "33.3%")) << table;
  EXPECT_TRUE(has(profile_table({}, 5), "all"));
}

}  // namespace
}  // namespace oa
