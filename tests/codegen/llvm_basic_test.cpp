// First steps of the CPU lowering: loops with tails, masks, reductions, loading and unloading.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "oa/core/error.h"
#include "tests/codegen/gang.h"

namespace oa::codegen {
namespace {

using namespace oa::kernel;

TEST(LlvmBasic, AxpyOverEveryWidthAndTail) {
  for (const u32 width : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
    const Kernel k = trace("axpy", cpu_target(), width, [] {
      const Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
      const U32 n = param_u32();
      const F32 a = param_f32();
      For(group() * oa::kernel::width() + lane(), n, group_count() * oa::kernel::width(),
          [&](U32 i) { y[i] = fma(F32(x[i]), a, F32(y[i])); });
    });
    const auto code = loader().load(compile_object(k, CpuTarget::host(), "axpy"), "axpy");
    for (u32 n = 0; n <= 200; n = n < 70 ? n + 1 : n + 13) {
      std::vector<f32> x(n + 8), y(n + 8);
      for (u32 i = 0; i < n + 8; ++i) x[i] = static_cast<f32>(i), y[i] = 0.5f * static_cast<f32>(i);
      const std::vector<u64> params{word(x), word(y), n, word(2.0f)};
      for (u32 g = 0; g < 3; ++g) code->function()(params.data(), g, g + 1, 3);
      for (u32 i = 0; i < n + 8; ++i) {
        ASSERT_EQ(y[i], (i < n ? 2.5f : 0.5f) * static_cast<f32>(i))
            << width << " " << n << " " << i;
      }
    }
  }
}

TEST(LlvmBasic, GroupReduceGivesEveryLaneTheSum) {
  for (const u32 width : {1u, 2u, 8u, 16u, 64u}) {
    std::vector<i32> in(width), out(width);
    std::iota(in.begin(), in.end(), 3);
    run(
        width, 1,
        [] {
          const Buffer x = param_buffer(Scalar::I32), y = param_buffer(Scalar::I32);
          const Value sum =
              group_reduce(x.load(lane()), [](const Value& a, const Value& b) { return a + b; });
          y[lane()] = sum;
        },
        in, out);
    const i32 want = std::accumulate(in.begin(), in.end(), 0);
    for (const i32 v : out) EXPECT_EQ(v, want);
  }
}

TEST(LlvmBasic, ObjectsWithTheSameSymbolLiveSideBySide) {
  const auto make = [](i32 value) {
    return compile_object(trace("k", cpu_target(), 8,
                                [&] {
                                  const Buffer y = param_buffer(Scalar::I32);
                                  y[0] = constant_int(Scalar::I32, value);
                                }),
                          CpuTarget::host(), "same");
  };
  const std::vector<u8> first = make(1), second = make(2);
  auto a = loader().load(first, "same");
  auto b = loader().load(second, "same");
  i32 out = 0;
  const u64 param = word(&out);
  a->function()(&param, 0, 1, 1);
  EXPECT_EQ(out, 1);
  b->function()(&param, 0, 1, 1);
  EXPECT_EQ(out, 2);
  a.reset();
  auto c = loader().load(first, "same");
  b->function()(&param, 0, 1, 1);
  EXPECT_EQ(out, 2);
  c->function()(&param, 0, 1, 1);
  EXPECT_EQ(out, 1);
}

TEST(LlvmBasic, BadObjectsAreErrors) {
  const std::vector<u8> junk(100, 7);
  EXPECT_THROW(loader().load(junk, "x"), Error);
  EXPECT_THROW(loader().load({}, "x"), Error);
  const Kernel k = trace("k", cpu_target(), 8, [] {});
  const auto object = compile_object(k, CpuTarget::host(), "present");
  EXPECT_THROW(loader().load(object, "absent"), Error);
  EXPECT_NO_THROW(loader().load(object, "present"));
}

TEST(LlvmBasic, HandlesOutliveTheirLoader) {
  std::unique_ptr<LoadedCode> code;
  {
    ObjectLoader own;
    code = own.load(compile_object(trace("k", cpu_target(), 4,
                                         [] {
                                           const Buffer y = param_buffer(Scalar::U32);
                                           y[lane()] = lane() * 3u;
                                         }),
                                   CpuTarget::host(), "f"),
                    "f");
  }
  std::vector<u32> out(4);
  const u64 param = word(out);
  code->function()(&param, 0, 1, 1);
  EXPECT_EQ(out, (std::vector<u32>{0, 3, 6, 9}));
}

}  // namespace
}  // namespace oa::codegen
