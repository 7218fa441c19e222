// Every op on every sample that it states: against its meaning in double precision, on the CPU, on
// a software Vulkan driver and in the reference interpreter (as the CPU and as a graphics card),
// fused and unfused, and its refusals.
#include <gtest/gtest.h>

#include "devices.h"
#include "oa/engine/engine_core.h"
#include "oa/matrix/all_ops.h"
#include "oa/ml/matrix/ml_ops.h"
#include "oa/ml/optim/update_ops.h"
#include "sample_run.h"
#include "tests/support/interpreter_device.h"

namespace oa::test {
namespace {

std::vector<Sample> samples_of(const OpDef& op) {
  graph::Samples s;
  op.samples(s);
  return s.list();
}

class OpSamples : public testing::TestWithParam<const OpDef*> {
 protected:
  const OpDef& op() const { return *GetParam(); }
  std::vector<Sample> legal() const {
    std::vector<Sample> list = samples_of(op());
    std::erase_if(list, [](const Sample& s) { return !s.rejection.empty(); });
    return list;
  }

  // All samples in as few programs as possible, since compiling takes the time.
  void run_together(Engine& e, const std::vector<Sample>& samples, bool flushes_denormals) {
    std::vector<std::vector<Array>> operands;
    std::vector<std::vector<Matrix>> results;
    for (const Sample& s : samples) {
      operands.push_back(operands_of(op(), s));
      results.push_back(apply(e, op(), s, operands.back()));
    }
    for (size_t i = 0; i < samples.size(); ++i) {
      const Expected expected = expected_of(op(), samples[i], operands[i]);
      EXPECT_EQ(judge(expected, results[i][0], flushes_denormals), "")
          << describe(op(), samples[i]);
    }
    e.check_guards();
  }
};

TEST_P(OpSamples, StatesSamples) {
  ASSERT_NE(op().samples, nullptr);
  EXPECT_GE(legal().size(), 1u);
}

TEST_P(OpSamples, OnTheCpu) {
  run_together(*open_device("cpu").engine, legal(), !moves_elements(op()));
}

// Compiling for the software driver takes long: the first sample of each dtype.
TEST_P(OpSamples, OnASoftwareDriver) {
  Opened& o = open_device("lavapipe");
  if (!o.engine) GTEST_SKIP() << o.failure;
  std::vector<Sample> few;
  std::vector<DType> seen;
  for (Sample& s : legal()) {
    if (needs_f64(s) || s.operands.empty()) continue;
    const DType t = s.operands.back().dtype;
    if (s.operands[0].shape.elements() < 2 || std::find(seen.begin(), seen.end(), t) != seen.end())
      continue;
    seen.push_back(t);
    few.push_back(std::move(s));
    if (few.size() == 3) break;
  }
  run_together(*o.engine, few, true);
}

constexpr i64 kMostInterpreted = 5000;  // elements; it is slow

// One at a time, each in every form of its operands, with every check of the interpreter.
void interpret(const OpDef& op, const std::vector<Sample>& samples, const kernel::Target& target,
               bool fuse) {
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample& s = samples[i];
    if (needs_f64(s) && !target.f64) continue;
    if (!s.operands.empty() && s.operands[0].shape.elements() > kMostInterpreted) continue;
    const std::vector<Array> operands = operands_of(op, s);
    const Expected expected = expected_of(op, s, operands);
    if (expected.value.dtype == DType::F64 && !target.f64) continue;
    Engine e = Engine::open_on(std::make_unique<InterpreterDevice>(target),
                               {.fuse = fuse, .guard_bands = true});
    std::vector<u8> plain;
    for (Form form : {Form::Plain, kForms[i % std::size(kForms)]}) {
      if (form != Form::Plain && s.operands.empty()) continue;
      SCOPED_TRACE(fmt::format("{} in form {}", describe(op, s), static_cast<int>(form)));
      try {
        const std::vector<Matrix> results = apply(e, op, s, operands, form);
        EXPECT_EQ(judge(expected, results[0], !moves_elements(op)), "");
        const std::vector<u8> bits = bits_of(results[0]);
        if (form == Form::Plain) plain = bits;
        EXPECT_TRUE(bits == plain) << "the form of the operands changes bits";
        e.check_guards();
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

TEST_P(OpSamples, InterpretedAsOnTheCpu) { interpret(op(), legal(), cpu_target(), true); }
TEST_P(OpSamples, InterpretedUnfused) { interpret(op(), legal(), cpu_target(), false); }
TEST_P(OpSamples, InterpretedAsOnAGraphicsCard) { interpret(op(), legal(), gpu_target(), true); }

TEST_P(OpSamples, RejectsWithExactTextAndChangesNothing) {
  Engine e = Engine::open_on(std::make_unique<InterpreterDevice>(cpu_target()));
  for (const Sample& s : samples_of(op())) {
    if (s.rejection.empty()) continue;
    const std::vector<Array> operands = operands_of(op(), s);
    std::vector<graph::TensorRef> inputs;
    for (const Array& a : operands) inputs.push_back(upload(e, a).tensor());
    const size_t nodes = e.core().graph().nodes.size();
    EXPECT_EQ(error_of([&] { e.core().graph().record(op(), s.attrs, inputs); }), s.rejection);
    EXPECT_EQ(e.core().graph().nodes.size(), nodes);
    EXPECT_TRUE(e.core().graph().scalars.empty());
  }
}

// A device without 64-bit floats says so.
TEST_P(OpSamples, RefusesF64WhereTheDeviceHasNone) {
  Engine e = Engine::open_on(std::make_unique<InterpreterDevice>(gpu_target()));
  for (const Sample& s : legal()) {
    if (!needs_f64(s)) continue;
    EXPECT_EQ(error_of([&] {
                for (const Matrix& m : apply(e, op(), s, operands_of(op(), s))) bits_of(m);
              }).find("interpreter:gpu has no 64-bit floats, expected f32 or the CPU") !=
                  std::string::npos,
              true)
        << describe(op(), s);
    break;
  }
}

std::vector<const OpDef*> every_op() {
  std::vector<const OpDef*> all = matrix::all_ops();
  const std::vector<const OpDef*> ml = ml::matrix::ml_ops();
  all.insert(all.end(), ml.begin(), ml.end());
  const matrix::OpList optim = ml::optim_ops();
  all.insert(all.end(), optim.begin(), optim.end());
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, OpSamples, testing::ValuesIn(every_op()),
                         [](const testing::TestParamInfo<const OpDef*>& tested) {
                           return fmt::format("{}_{}", tested.param->name(), tested.index);
                         });

}  // namespace
}  // namespace oa::test
