// The shape of the generated code: what the speed of products and elementwise kernels rests on.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "oa/core/error.h"
#include "tests/codegen/gang.h"

namespace oa::codegen {
namespace {

using namespace oa::kernel;

// A register tile of a product: accumulators in variables, uniform loads of A, contiguous ones of
// B.
Kernel product_tile(u32 width, u32 rows, u32 vectors, bool constant_depth) {
  return traced(width, [&] {
    const Buffer a = param_buffer(Scalar::F32), b = param_buffer(Scalar::F32),
                 c = param_buffer(Scalar::F32);
    const U32 n = param_u32(), depth_param = param_u32();
    const U32 depth = constant_depth ? U32(256) : depth_param;
    const U32 row = group() * rows;
    std::vector<Var<F32>> sums;
    for (u32 i = 0; i < rows * vectors; ++i) sums.emplace_back(0.0f);
    For(U32(0), depth, U32(1), [&](U32 k) {
      std::vector<F32> bs;
      for (u32 v = 0; v < vectors; ++v) bs.push_back(F32(b[k * n + v * width + lane()]));
      for (u32 r = 0; r < rows; ++r) {
        const F32 x(a[(row + r) * depth + k]);
        for (u32 v = 0; v < vectors; ++v)
          sums[r * vectors + v] = fma(x, bs[v], *sums[r * vectors + v]);
      }
    });
    for (u32 r = 0; r < rows; ++r) {
      for (u32 v = 0; v < vectors; ++v)
        c[(row + r) * n + v * width + lane()] = *sums[r * vectors + v];
    }
  });
}

// Lines of the loop that holds most lines with `what`, from its label to its jump back.
std::vector<std::string> hottest_loop(const std::string& assembly, const std::string& what) {
  std::vector<std::string> lines, best;
  std::istringstream stream(assembly);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  const auto count = [&](const std::vector<std::string>& in) {
    return std::count_if(in.begin(), in.end(),
                         [&](const std::string& l) { return l.find(what) != l.npos; });
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].rfind(".LBB", 0) != 0) continue;
    const std::string label = lines[i].substr(0, lines[i].find(':'));
    for (size_t j = i + 1; j < lines.size() && lines[j].rfind(".LBB", 0) != 0; ++j) {
      if (lines[j].find("\tj") == std::string::npos || lines[j].find(label) == std::string::npos)
        continue;
      std::vector<std::string> loop(lines.begin() + static_cast<long>(i),
                                    lines.begin() + static_cast<long>(j) + 1);
      if (count(loop) > count(best)) best = loop;
    }
  }
  return best;
}

size_t lines_with(const std::vector<std::string>& lines, const std::string& what) {
  return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), [&](const std::string& l) {
    return l.find(what) != std::string::npos;
  }));
}

TEST(LlvmText, ProductTilesStayInRegisters) {
  for (const CpuTarget& target : targets()) {
    if (!target.has("fma")) continue;
    const bool wide = target.vector_bytes == 64;
    const u32 width = target.vector_bytes / 4, rows = wide ? 12 : 6, vectors = 2;
    for (const bool constant_depth : {false, true}) {
      const std::string text = compile_to_text(product_tile(width, rows, vectors, constant_depth),
                                               target, CodeText::Assembly);
      const auto loop = hottest_loop(text, "vfmadd");
      EXPECT_EQ(lines_with(loop, "vfmadd"), rows * vectors) << text;
      EXPECT_EQ(lines_with(loop, wide ? "%zmm" : "%ymm"), lines_with(loop, "mm"));
      EXPECT_EQ(lines_with(loop, "(%rsp"), 0u) << "spills in the inner loop:\n" << text;
      EXPECT_EQ(lines_with(loop, "gather"), 0u);
      EXPECT_EQ(lines_with(loop, "vmovups"), vectors);  // the loads of B
      EXPECT_LE(loop.size(), rows * (vectors + 2) + 16u) << text;
    }
  }
}

TEST(LlvmText, NoRemainderWhereConstantsLeaveNone) {
  const auto kernel_of = [](u32 count) {
    return traced(16, [&] {
      const Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
      For(lane(), U32(count), U32(16), [&](U32 i) { y[i] = F32(x[i]) + 1.0f; });
    });
  };
  EXPECT_EQ(compile_to_text(kernel_of(256), host(), CodeText::Ir).find("masked"),
            std::string::npos);
  EXPECT_NE(compile_to_text(kernel_of(255), host(), CodeText::Ir).find("masked.store"),
            std::string::npos);
}

TEST(LlvmText, UniformLoadsAreScalarsAndContiguousOnesVectors) {
  const Kernel k = traced(16, [] {
    const Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
    y[lane()] = F32(x[group()]) * F32(x[lane() + group() * 16u]);
  });
  const std::string ir = compile_to_ir(k, host());
  EXPECT_NE(ir.find("load float, ptr"), std::string::npos) << ir;
  EXPECT_NE(ir.find("load <16 x float>, ptr"), std::string::npos) << ir;
  EXPECT_EQ(ir.find("gather"), std::string::npos);
}

TEST(LlvmText, AConditionOverTheBoundHasAPathWithoutMasks) {
  const Kernel k = traced(16, [] {
    const Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
    const U32 i = group() * width() + lane();
    If(i < param_u32(), [&] { y[i] = F32(x[i]); });
  });
  const std::string ir = compile_to_text(k, host(), CodeText::Ir);
  EXPECT_NE(ir.find("store <16 x float>"), std::string::npos) << ir;
  EXPECT_NE(ir.find("masked.store"), std::string::npos) << ir;
}

TEST(LlvmText, CheapBodiesBecomeSelects) {
  const Kernel k = traced(16, [] {
    const Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
    const Var<F32> v{F32(x[lane()])};
    If(*v < 0.0f, [&] { v = -*v; }, [&] { v = *v + 1.0f; });
    y[lane()] = *v;
  });
  const std::string ir = compile_to_ir(k, host());
  EXPECT_NE(ir.find("select <16 x i1>"), std::string::npos) << ir;
  // Only the loop over groups branches.
  size_t branches = 0;
  for (size_t at = ir.find("br i1"); at != std::string::npos; at = ir.find("br i1", at + 1))
    ++branches;
  EXPECT_LE(branches, 2u) << ir;
}

TEST(LlvmText, EqualKernelsGiveEqualObjects) {
  const auto object = [] { return compile_object(product_tile(16, 4, 2, false), host(), "same"); };
  EXPECT_EQ(object(), object());
}

TEST(LlvmText, FeaturesAreWholeWords) {
  const CpuTarget t{.cpu = "x", .features = "+avx2,+avx512fp16,-fma"};
  EXPECT_TRUE(t.has("avx2"));
  EXPECT_TRUE(t.has("avx512fp16"));
  EXPECT_FALSE(t.has("avx"));
  EXPECT_FALSE(t.has("avx512f"));
  EXPECT_FALSE(t.has("fma"));
}

}  // namespace
}  // namespace oa::codegen
