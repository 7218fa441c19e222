// Tracing: structure of the recorded program and the errors of the language.
#include <gtest/gtest.h>

#include "oa/core/error.h"
#include "oa/kernel/lang.h"

namespace oa::kernel {
namespace {

TEST(Trace, RecordsStructuredLoops) {
  Kernel k = trace("scale", Target{}, 16, [] {
    Buffer x = param_buffer(Scalar::F32);
    U32 n = param_u32();
    For(lane(), n, U32(width()), [&](U32 i) { x[i] = F32(x[i]) * 2.0f; });
  });
  EXPECT_EQ(k.params, 2u);
  const Instr& loop = k[k.body.back()];
  ASSERT_EQ(loop.op, Op::For);
  ASSERT_EQ(loop.regions.size(), 1u);
  EXPECT_EQ(k[loop.regions[0].back()].op, Op::Store);
}

TEST(Trace, NamesTheOperationOfATypeError) {
  try {
    trace("bad", Target{}, 16,
          [] { binary(Op::Add, constant(Scalar::F32, 1), constant(Scalar::I32, 1)); });
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "kernel::add: operand types differ, got f32 and i32");
  }
}

TEST(Trace, RefusesAWidthThatIsNoPowerOfTwo) {
  EXPECT_THROW(trace("bad", Target{}, 12, [] {}), Error);
}

}  // namespace
}  // namespace oa::kernel
