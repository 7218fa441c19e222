// The evidence of a captured training step, through TrainingProgram.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "oa/matrix/create.h"
#include "oa/matrix/matmul.h"
#include "oa/ml/autograd/gradient_tape.h"
#include "oa/ml/loss/elementwise.h"
#include "oa/ml/nn/linear.h"
#include "oa/ml/optim/adam.h"
#include "oa/ml/training/training_program.h"

namespace oa {
namespace {

using ml::TrainingCompilationStage;
using ml::TrainingCompilationState;
using nlohmann::json;

TEST(ProgramReports, CoverTheWholeStep) {
  Engine e = Engine::open({.device = "cpu"});
  const auto model = ml::nn::Linear::with_seed(e, 4, 3, 1);
  ml::AdamW optimizer(model->all_parameters(), 1e-3);
  const Matrix x = Matrix::from_f32(e, {2, 4}, std::vector<f32>(8, 1));
  const Matrix y = Matrix::from_f32(e, {2, 3}, std::vector<f32>(6, 0));
  const ml::TrainingProgram program = ml::TrainingProgram::capture(e, optimizer, [&] {
    ml::GradientTape tape;
    const Matrix loss = ml::loss::mse(model->forward(x), y);
    tape.backward(loss);
    return loss;
  });
  const auto& stages = program.compilation_stages();
  ASSERT_EQ(stages.size(), 11u);
  for (size_t i = 0; i < stages.size(); ++i) {
    EXPECT_EQ(stages[i].stage, static_cast<TrainingCompilationStage>(i));
    EXPECT_NE(stages[i].state, TrainingCompilationState::NotRun);
    EXPECT_NE(stages[i].state, TrainingCompilationState::Failed);
  }
  EXPECT_EQ(stages[1].state, TrainingCompilationState::Analyzed);  // a capture is checked

  const graph::SemanticGraph& graph = program.semantic_graph();
  size_t updates = 0, parameters = 0;
  for (const auto& o : graph.operations) updates += o.op.starts_with("adam");
  for (const auto& v : graph.values) {
    if (v.role != graph::SemanticGraph::Role::Parameter) continue;
    ++parameters;
    EXPECT_TRUE(v.name == "weight" || v.name == "bias") << v.name;
  }
  EXPECT_GE(updates, 2u);
  EXPECT_EQ(parameters, 2u);

  const json semantic = json::parse(program.semantic_debug_report_json("linear"));
  EXPECT_EQ(semantic["schema"], "oa.semantic_graph.v2");
  EXPECT_EQ(semantic["name"], "linear");
  EXPECT_EQ(semantic["operation_count"], graph.operations.size());
  const json execution = json::parse(program.debug_report_json());
  EXPECT_EQ(execution["schema"], "oa.execution_graph.v3");
  EXPECT_EQ(execution["captured"], true);
  const json compiled = json::parse(program.compilation_debug_report_json());
  EXPECT_EQ(compiled["schema"], "oa.training_compilation.v2");
  EXPECT_EQ(compiled["captured"], true);
  EXPECT_EQ(compiled["dnn_plan"]["graph_hash"], semantic["graph_hash"]);
}

}  // namespace
}  // namespace oa
