// What a compile leaves behind: records that follow what the stages did, reasons that name the ops,
// a memory plan that adds up, and reports that are JSON.
#include "oa/graph/evidence.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "oa/engine/engine_core.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/random.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/transcendental.h"
#include "oa/ml/parameter.h"
#include "tests/support/interpreter_device.h"

namespace oa {
namespace {

using graph::Evidence;
using graph::Obstacle;
using graph::Stage;
using graph::StageState;
using nlohmann::json;
using Matrices = std::vector<Matrix>;

Engine open(const EngineOptions& options = {}) {
  return Engine::open_on(std::make_unique<test::InterpreterDevice>(test::cpu_target()), options);
}
Matrix zeros(const Engine& e, const Shape& shape) {
  return Matrix::from_f32(e, shape, std::vector<f32>(static_cast<size_t>(shape.elements())));
}
const graph::StageRecord& record(const ExecutionPlan& plan, Stage stage) {
  return plan.stages()[static_cast<u32>(stage)];
}
const Evidence::Boundary* boundary(const ExecutionPlan& plan, std::string_view maker,
                                   std::string_view reader) {
  for (const Evidence::Boundary& b : plan.evidence().boundaries) {
    if (b.maker == maker && b.reader == reader) return &b;
  }
  return nullptr;
}

// --- Records ---

TEST(Records, AStageWithoutWorkSaysSo) {
  Engine e = open();
  const Matrix x = zeros(e, {8}), y = zeros(e, {8});
  const ExecutionPlan one = e.capture([&] { return Matrices{x + y}; });
  EXPECT_EQ(record(one, Stage::Decomposition).state, StageState::Inherited);
  EXPECT_EQ(record(one, Stage::Fusion).state, StageState::Analyzed);
  EXPECT_EQ(record(one, Stage::SynchronizationPlanning).state, StageState::Inherited);
  EXPECT_EQ(record(one, Stage::SynchronizationPlanning).output_count, 0u);

  const ExecutionPlan more = e.capture([&] {
    const Matrix s = matrix::softmax(matrix::mat_mul(x.reshape({1, 8}), y.reshape({8, 1})));
    return Matrices{s, matrix::mat_mul(s * 2.0 + 1.0, y.reshape({1, 8}))};
  });
  EXPECT_EQ(record(more, Stage::Decomposition).state, StageState::Applied);
  EXPECT_EQ(record(more, Stage::Fusion).state, StageState::Applied);
  EXPECT_EQ(record(more, Stage::SynchronizationPlanning).state, StageState::Applied);
  EXPECT_GT(record(more, Stage::SynchronizationPlanning).output_count, 0u);
  EXPECT_EQ(record(more, Stage::CommandRecording).output_count, more.dispatch_count());
}

TEST(Records, DecompositionCountsWhatItDid) {
  Engine e = open();
  const Matrix x = zeros(e, {4, 4}), state = zeros(e, {4, 4});
  const ExecutionPlan plan = e.capture([&] {
    matrix::exp(x);                     // nobody holds it
    const Matrix a = x + x, b = x + x;  // equal, and both held
    state.assign(a + b);
    return Matrices{matrix::softmax(a)};
  });
  const graph::StageRecord& r = record(plan, Stage::Decomposition);
  EXPECT_EQ(r.input_count, 6u);
  EXPECT_NE(r.reason.find("1 composite ops expanded, 1 equal nodes merged, 1 operations dropped, 1 "
                          "assignments"),
            std::string::npos)
      << r.reason;
}

TEST(Records, MemoryIsAppliedWhereValuesShareIt) {
  Engine e = open();
  const Matrix x = zeros(e, {64, 64});
  const ExecutionPlan chain = e.capture([&] {
    Matrix y = x;
    for (int i = 0; i < 4; ++i) y = matrix::mat_mul(y, x);
    return Matrices{y};
  });
  const graph::StageRecord& r = record(chain, Stage::MemoryPlanning);
  EXPECT_EQ(r.state, StageState::Applied);
  EXPECT_LT(r.output_count, r.input_count);
  EXPECT_EQ(r.output_count, chain.evidence().arena_bytes);
  EXPECT_EQ(r.input_count, chain.evidence().transient_bytes);
}

TEST(Records, TheStageThatFailedIsNamed) {
  Engine e = Engine::open_on(std::make_unique<test::InterpreterDevice>(test::gpu_target()));
  const Matrix x = Matrix::from_slice<f64>(e, {2}, std::vector<f64>{1, 2});
  EXPECT_THROW((x + x).read<f64>(), Error);
  const graph::StageRecords& stages = e.last_compilation();
  const auto& failed = stages[static_cast<u32>(Stage::Precision)];
  EXPECT_EQ(failed.state, StageState::Failed);
  EXPECT_NE(failed.reason.find("64-bit floats"), std::string::npos) << failed.reason;
  EXPECT_EQ(stages[static_cast<u32>(Stage::Placement)].state, StageState::Analyzed);
  for (u32 i = static_cast<u32>(Stage::KernelSelection); i < graph::kStageCount; ++i) {
    EXPECT_EQ(stages[i].state, StageState::NotRun) << i;
    EXPECT_EQ(stages[i].stage, static_cast<Stage>(i));
  }
}

TEST(Records, CompareByWhatWasDoneAndPrintIt) {
  graph::StageRecord a{.stage = Stage::Fusion,
                       .state = StageState::Applied,
                       .input_count = 3,
                       .output_count = 1,
                       .reason = "one kernel"};
  graph::StageRecord b = a;
  b.seconds = 1;
  EXPECT_EQ(a, b);
  b.output_count = 2;
  EXPECT_NE(a, b);
  EXPECT_EQ(to_string(a), "fusion applied: 3 -> 1 (one kernel)");
  EXPECT_EQ(to_string(graph::StageRecord{}), "semantic_validation not_run: 0 -> 0");
}

// --- Reasons ---

TEST(Boundaries, TellWhyAValueWentThroughMemory) {
  Engine e = open();
  const Matrix x = zeros(e, {16, 32}), w = zeros(e, {32, 8});
  const ExecutionPlan product =
      e.capture([&] { return Matrices{matrix::mat_mul(matrix::sum(x, 1, true) + x, w)}; });
  const Evidence::Boundary* b = boundary(product, "add", "mat_mul");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->obstacle, Obstacle::ProductOperand);
  EXPECT_EQ(b->reason, "mat_mul reads every element of its operands many times");

  const ExecutionPlan whole =
      e.capture([&] { return Matrices{matrix::sum(matrix::mat_mul(x, w))}; });
  b = boundary(whole, "mat_mul", "sum");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->obstacle, Obstacle::NeedsWhole);

  const auto has = [](const ExecutionPlan& plan, Obstacle obstacle) {
    for (const Evidence::Boundary& edge : plan.evidence().boundaries) {
      if (edge.obstacle == obstacle) return true;
    }
    return false;
  };
  const ExecutionPlan order = e.capture([&] {
    const Matrix s = matrix::softmax(x);
    return Matrices{s, matrix::transpose(s, 0, 1) * 2.0};
  });
  EXPECT_TRUE(has(order, Obstacle::OtherOrder));

  const ExecutionPlan axes =
      e.capture([&] { return Matrices{matrix::sum(matrix::exp(x - matrix::max(x, 1, true)), 0)}; });
  EXPECT_TRUE(has(axes, Obstacle::OtherReduction));
}

TEST(Boundaries, WithoutFusionEveryEdgeSaysThatItIsOff) {
  Engine e = open({.fuse = false});
  const Matrix x = zeros(e, {8});
  const ExecutionPlan plan = e.capture([&] { return Matrices{matrix::exp(x * 2.0) + 1.0}; });
  ASSERT_EQ(plan.evidence().boundaries.size(), 2u);
  for (const Evidence::Boundary& b : plan.evidence().boundaries) {
    EXPECT_EQ(b.obstacle, Obstacle::FusionOff);
    EXPECT_EQ(b.reason, "fusion is switched off");
  }
  // The same graph fused has none.
  Engine fused = open();
  const Matrix y = zeros(fused, {8});
  EXPECT_TRUE(fused.capture([&] { return Matrices{matrix::exp(y * 2.0) + 1.0}; })
                  .evidence()
                  .boundaries.empty());
}

// --- Dispatches and memory ---

TEST(Dispatches, NameTheirOperationsBytesAndWhatTheyWaitFor) {
  Engine e = open({.fuse = false});
  const Matrix x = zeros(e, {100});
  const ExecutionPlan plan = e.capture([&] {
    const Matrix a = x + 1.0, b = x * 2.0;
    return Matrices{a * b};
  });
  const Evidence& ev = plan.evidence();
  ASSERT_EQ(ev.dispatches.size(), 3u);
  EXPECT_FALSE(ev.dispatches[0].barrier);
  EXPECT_FALSE(ev.dispatches[1].barrier);
  const Evidence::DispatchInfo& last = ev.dispatches[2];
  EXPECT_TRUE(last.barrier);
  EXPECT_EQ(last.hazard, graph::Hazard::Kind::ReadAfterWrite);
  EXPECT_EQ(last.waits_for, 1u);
  EXPECT_EQ(last.reads.size(), 2u);
  EXPECT_EQ(last.bytes_read, 800u);
  EXPECT_EQ(last.bytes_written, 400u);
  EXPECT_GT(last.flops, 0);
  EXPECT_EQ(last.operations, (std::vector<u32>{2}));
  EXPECT_EQ(last.live_bytes, 800u);
  EXPECT_EQ(ev.operation_dispatches[0], (std::vector<u32>{0}));
  EXPECT_FALSE(last.choice.empty());
}

TEST(Dispatches, MergedLaunchesKeepAllOfTheirOperations) {
  Engine e = open();
  const Matrix a = zeros(e, {10}), b = zeros(e, {20});
  const ExecutionPlan plan = e.capture([&] { return Matrices{matrix::exp(a), matrix::exp(b)}; });
  const Evidence& ev = plan.evidence();
  ASSERT_EQ(ev.dispatches.size(), 1u);
  EXPECT_EQ(ev.dispatches[0].groups.size(), 2u);
  EXPECT_EQ(ev.dispatches[0].operations, (std::vector<u32>{0, 1}));
  EXPECT_NE(ev.dispatches[0].choice.find("2 equal kernels side by side"), std::string::npos);
}

TEST(Dispatches, ATableReadAtComputedRowsCountsWhatIsRead) {
  Engine e = open();
  const Matrix table = zeros(e, {1000, 4});
  const Matrix rows = Matrix::from_slice<u32>(e, {3}, std::vector<u32>{5, 7, 9});
  const ExecutionPlan plan =
      e.capture([&] { return Matrices{matrix::index_select(table, rows, 0) * 2.0}; });
  ASSERT_EQ(plan.evidence().dispatches.size(), 1u);
  EXPECT_LE(plan.evidence().dispatches[0].bytes_read, 3u * 4 * 4 + 3 * 4);
}

TEST(Dispatches, LifetimesNeverShareMemoryAtOnce) {
  Engine e = open();
  const Matrix x = zeros(e, {32, 32});
  const ExecutionPlan plan = e.capture([&] {
    Matrix y = x, z = x;
    for (int i = 0; i < 5; ++i) {
      z = matrix::softmax(matrix::mat_mul(y, z) + y);
      y = matrix::mat_mul(z, matrix::exp(y));
    }
    return Matrices{y};
  });
  const Evidence& ev = plan.evidence();
  using Kind = Evidence::Resource::Kind;
  const auto in_arena = [](const Evidence::Resource& r) {
    return (r.kind == Kind::Transient || r.kind == Kind::Scratch) && r.first != Evidence::kNone;
  };
  u64 checked = 0;
  for (u32 i = 0; i < ev.resources.size(); ++i) {
    for (u32 j = 0; j < i; ++j) {
      const auto &a = ev.resources[i], &b = ev.resources[j];
      if (!in_arena(a) || !in_arena(b)) continue;
      if (a.last < b.first || b.last < a.first) continue;
      if (a.reuses == j || b.reuses == i) continue;
      ++checked;
      EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset)
          << a.name << " and " << b.name;
    }
  }
  EXPECT_GT(checked, 3u);
  for (const auto& d : ev.dispatches) EXPECT_LE(d.live_bytes, ev.arena_bytes);
}

TEST(EagerPrograms, KeepTheEvidenceOfTheLatestOnly) {
  Engine e = open();
  const Matrix x = zeros(e, {8});
  (x + 1.0).read_f32();
  EXPECT_EQ(record(e.capture([&] { return Matrices{x + 1.0}; }), Stage::ReplaySafety).state,
            StageState::Analyzed);
  EXPECT_EQ(e.last_compilation()[static_cast<u32>(Stage::Fusion)].input_count, 1u);
}

// --- Reports ---

TEST(Reports, AreJsonOfTheirSchemas) {
  Engine e = open();
  const ml::Parameter w = ml::Parameter::create("weight", zeros(e, {8, 8}));
  const Matrix x = zeros(e, {4, 8}), state = zeros(e, {4, 8});
  const ExecutionPlan plan = e.capture([&] {
    const Matrix y = matrix::softmax(matrix::mat_mul(x, w.data()) * 0.5);
    state.assign(y + state);
    return Matrices{matrix::sum(y)};
  });
  const json semantic = json::parse(plan.semantic_report_json("step"));
  EXPECT_EQ(semantic["schema"], "oa.semantic_graph.v2");
  EXPECT_EQ(semantic["name"], "step");
  ASSERT_EQ(semantic["operations"].size(), semantic["operation_count"]);
  ASSERT_EQ(semantic["values"].size(), semantic["value_count"]);
  u64 parameters = 0, assigned = 0;
  for (const json& v : semantic["values"]) {
    if (v["role"] == "parameter") {
      ++parameters;
      EXPECT_EQ(v["name"], "weight");
      EXPECT_EQ(v["shape"], (std::vector<i64>{8, 8}));
      EXPECT_TRUE(v["producer"].is_null());
    }
  }
  EXPECT_EQ(parameters, 1u);
  for (size_t i = 0; i < semantic["operations"].size(); ++i) {
    const json& o = semantic["operations"][i];
    EXPECT_EQ(o["id"], i);
    assigned += !o["assigns"].is_null();
    for (const json& out : o["outputs"]) {
      EXPECT_EQ(semantic["values"][out.get<size_t>()]["producer"], i);
    }
    for (const json& in : o["inputs"]) EXPECT_LT(in.get<size_t>(), semantic["values"].size());
  }
  EXPECT_EQ(assigned, 1u);

  const json execution = json::parse(plan.execution_report_json("step"));
  EXPECT_EQ(execution["schema"], "oa.execution_graph.v3");
  EXPECT_EQ(execution["captured"], true);
  ASSERT_EQ(execution["nodes"].size(), plan.dispatch_count());
  for (const json& n : execution["nodes"]) {
    for (const json& r : n["reads"]) EXPECT_LT(r.get<size_t>(), execution["resources"].size());
    EXPECT_GT(n["bytes_written"].get<u64>(), 0u);
  }

  const json compiled = json::parse(plan.compilation_report_json("step"));
  EXPECT_EQ(compiled["schema"], "oa.training_compilation.v2");
  ASSERT_EQ(compiled["stages"].size(), 11u);
  EXPECT_EQ(compiled["stages"][3]["stage"], "fusion");
  const json& dnn = compiled["dnn_plan"];
  EXPECT_EQ(dnn["partition_count"], dnn["partitions"].size());
  EXPECT_EQ(dnn["applied_partition_count"].get<u64>() + dnn["inherited_partition_count"].get<u64>(),
            dnn["partition_count"].get<u64>());
  const json& lowering = compiled["lowering_analysis"];
  EXPECT_EQ(lowering["operation_count"], semantic["operation_count"]);
  EXPECT_EQ(lowering["schema_owned_node_count"].get<u64>() +
                lowering["compatibility_node_count"].get<u64>(),
            plan.dispatch_count());
  const json& memory = compiled["memory_analysis"];
  EXPECT_EQ(memory["resource_count"], memory["resources"].size());
  EXPECT_EQ(memory["resources"].size(), execution["resources"].size());
}

TEST(Reports, AreEqualForEqualPrograms) {
  const auto reports = [] {
    Engine e = open();
    const Matrix x = zeros(e, {4, 8});
    const ExecutionPlan plan =
        e.capture([&] { return Matrices{matrix::softmax(x * 3.0), matrix::exp(x)}; });
    return plan.semantic_report_json() + plan.execution_report_json() +
           plan.compilation_report_json();
  };
  EXPECT_EQ(reports(), reports());
}

}  // namespace
}  // namespace oa
