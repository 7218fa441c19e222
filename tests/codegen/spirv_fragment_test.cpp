// Cooperative matrices: the packaged validator does not know them, so the words are read here.
#include "oa/codegen/spirv/extension_ops.h"
#include "oa/core/error.h"
#include "tests/codegen/spirv_support.h"

namespace oa::codegen::spirv::test {
namespace {

using namespace oa::kernel;

constexpr u32 kTypeMatrix = 4456, kMatrixLoad = 4457, kMatrixStore = 4458, kMatrixMulAdd = 4459;

struct Product {
  Scalar scalar = Scalar::F16;
  bool shared = true;
  bool vectors = false;  // fill the shared tile by 4-element stores
  u32 pad = 0;
  Layout layout = Layout::RowMajor;
};

Kernel product(const Product& p) {
  return traced([p] {
    Buffer a = param_buffer(p.scalar), b = param_buffer(p.scalar), c = param_buffer(Scalar::F32);
    const Type ta = fragment_type(FragUse::A, p.scalar, 16, 16);
    const Type tb = fragment_type(FragUse::B, p.scalar, 16, 16);
    const Type tc = fragment_type(FragUse::C, Scalar::F32, 16, 16);
    const U32 zero(0);
    const U32 stride(16 + p.pad);
    VarValue acc(frag_fill(tc, F32(0.0f)));
    if (p.shared) {
      Shared tile(p.scalar, 16 * (16 + p.pad) * 2);
      if (p.vectors) {
        tile.store(lane() * U32(4), a.load(lane() * U32(4), 4));
      } else {
        tile[lane()] = Value(a[lane()]);
      }
      barrier();
      For(U32(0), U32(2), U32(1), [&](U32 i) {
        const Value fa = frag_load(ta, tile, i * U32(16) * stride, stride, p.layout);
        const Value fb = frag_load(tb, tile, zero, stride, p.layout);
        acc = frag_mul_add(fa, fb, *acc);
        barrier();
      });
    } else {
      const Value fa = frag_load(ta, a, zero, stride, p.layout);
      const Value fb = frag_load(tb, b, zero, stride, p.layout);
      acc = frag_mul_add(fa, fb, *acc);
    }
    acc = frag_add(*acc, frag_mul(*acc, frag_load(tc, c, zero, stride, Layout::RowMajor)));
    frag_store(c, zero, stride, Layout::RowMajor, *acc);
    if (p.scalar == Scalar::F16) {
      frag_store(a, zero, stride, Layout::ColMajor, frag_cast(*acc, p.scalar));
    }
  });
}

u32 constant_of(const std::vector<Word>& module, u32 id) {
  for (const Word& w : find(module, 43)) {
    if (w.operands[1] == id) return w.operands[2];
  }
  ADD_FAILURE() << "id " << id << " is no constant";
  return ~0u;
}

const Word* definition(const std::vector<Word>& module, u32 id, u32 op) {
  for (const Word& w : module) {
    const bool type = op < 40 || op == kTypeMatrix;
    if (w.op == op && w.operands[type ? 0 : 1] == id) return &w;
  }
  return nullptr;
}

TEST(SpirvFragments, ProductOfHalves) {
  const auto words = compile_spirv(product({}), full_target());
  const auto module = walk(words);
  EXPECT_TRUE(has_capability(module, 6022));
  EXPECT_TRUE(has_capability(module, 5345));  // VulkanMemoryModel
  EXPECT_TRUE(has_capability(module, 9));     // Float16
  EXPECT_FALSE(has_capability(module, 5116));
  const auto model = find(module, 14);
  ASSERT_EQ(model.size(), 1u);
  EXPECT_EQ(model[0].operands, (std::vector<u32>{5348, 3}));
  const auto extensions = find(module, 10);
  ASSERT_EQ(extensions.size(), 1u);
  EXPECT_STREQ(reinterpret_cast<const char*>(extensions[0].operands.data()),
               "SPV_KHR_cooperative_matrix");

  // A, B and C of 16 x 16 at subgroup scope, and the f16 accumulator of the cast.
  const auto types = find(module, kTypeMatrix);
  ASSERT_EQ(types.size(), 4u);
  std::vector<u32> uses;
  for (const Word& t : types) {
    ASSERT_EQ(t.operands.size(), 6u);
    EXPECT_EQ(constant_of(module, t.operands[2]), 3u);
    EXPECT_EQ(constant_of(module, t.operands[3]), 16u);
    EXPECT_EQ(constant_of(module, t.operands[4]), 16u);
    uses.push_back(constant_of(module, t.operands[5]));
  }
  std::sort(uses.begin(), uses.end());
  EXPECT_EQ(uses, (std::vector<u32>{0, 1, 2, 2}));

  const auto multiply = find(module, kMatrixMulAdd);
  ASSERT_EQ(multiply.size(), 1u);
  ASSERT_EQ(multiply[0].operands.size(), 5u);
  for (u32 i = 0; i < 2; ++i) {  // operands come from loads of the right role
    const Word* load = definition(module, multiply[0].operands[2 + i], kMatrixLoad);
    ASSERT_NE(load, nullptr);
    const Word* type = definition(module, load->operands[0], kTypeMatrix);
    ASSERT_NE(type, nullptr);
    EXPECT_EQ(constant_of(module, type->operands[5]), i);
    EXPECT_EQ(constant_of(module, load->operands[3]), 0u);   // row-major
    EXPECT_EQ(constant_of(module, load->operands[4]), 16u);  // stride
    EXPECT_EQ(load->operands[5], 0x20u);                     // non-private
  }
  EXPECT_EQ(find(module, kMatrixStore).size(), 2u);
}

TEST(SpirvFragments, LayoutAndDeviceLoads) {
  const auto module =
      walk(compile_spirv(product({.shared = false, .layout = Layout::ColMajor}), full_target()));
  u32 columns = 0;
  for (const Word& load : find(module, kMatrixLoad)) {
    columns += constant_of(module, load.operands[3]);
    ASSERT_EQ(load.operands.size(), 7u);  // aligned, private: no barrier orders device memory
    EXPECT_EQ(load.operands[5], 2u);
    const Word* chain = definition(module, load.operands[2], 65);  // into an array, as required
    ASSERT_NE(chain, nullptr);
    EXPECT_EQ(chain->operands.size(), 5u);
  }
  EXPECT_EQ(columns, 2u);
  for (const Word& store : find(module, kMatrixStore)) EXPECT_EQ(store.operands.size(), 6u);
}

TEST(SpirvFragments, VectorCellsDivideTheStride) {
  // Multiples of four elements: the tile is an array of 4-vectors and strides count those.
  auto module = walk(compile_spirv(product({.vectors = true, .pad = 8}), full_target()));
  const auto loads = find(module, kMatrixLoad);
  ASSERT_EQ(loads.size(), 3u);
  EXPECT_EQ(constant_of(module, loads[0].operands[4]), 6u);  // 24 elements
  const Word* chain = definition(module, loads[0].operands[2], 65);
  ASSERT_NE(chain, nullptr);
  // The offset is a multiple of the stride, which is divided in its place.
  const Word* index = definition(module, chain->operands[3], 132);  // OpIMul
  ASSERT_NE(index, nullptr);
  EXPECT_EQ(constant_of(module, index->operands[3]), 6u);
  // A stride of 17 elements leaves plain cells.
  module = walk(compile_spirv(product({.vectors = true, .pad = 1}), full_target()));
  for (const Word& load : find(module, kMatrixLoad)) {
    EXPECT_EQ(constant_of(module, load.operands[4]), 17u);
  }
}

// 16-bit fragments from cells of 4 bytes, which carry 16-byte copies; offsets that are whole
// vectors only by what is known of their parts.
TEST(SpirvFragments, HalvesFromWordCells) {
  for (u32 step : {8u, 4u, 2u}) {
    const Kernel k = traced([&] {
      Buffer a = param_buffer(Scalar::U32), c = param_buffer(Scalar::F32);
      const U32 at = param_u32();
      Shared tile(Scalar::U32, 1024);
      tile.store(lane() * U32(4), a.load(lane() * U32(4), 4));
      barrier();
      const U32 offset = ((at ^ U32(1)) << U32(3)) + (at * U32(step)) % U32(64);
      const Value fa = frag_load(fragment_type(FragUse::A, Scalar::F16, 16, 16), tile, offset,
                                 U32(8), Layout::RowMajor);
      const Value fb = frag_load(fragment_type(FragUse::B, Scalar::F16, 16, 16), tile, offset,
                                 cast<U32>(cast<U64>(at * U32(8))), Layout::RowMajor);
      const Type tc = fragment_type(FragUse::C, Scalar::F32, 16, 16);
      frag_store(c, U32(0), U32(16), Layout::RowMajor, frag_mul_add(fa, fb, frag_fill(tc, F32(0))));
    });
    const auto module = walk(compile_spirv(k, full_target()));
    const auto loads = find(module, kMatrixLoad);
    ASSERT_EQ(loads.size(), 2u);
    // Offsets and strides count halves; what is known to divide them makes the vectors.
    EXPECT_EQ(constant_of(module, loads[0].operands[4]), 8 / step) << step;
    const Word* stride = definition(module, loads[1].operands[4], 194);
    ASSERT_NE(stride, nullptr);
    EXPECT_EQ(1u << constant_of(module, stride->operands[3]), step);
  }
}

TEST(SpirvFragments, BFloat16) {
  const auto module = walk(compile_spirv(product({.scalar = Scalar::BF16}), full_target()));
  EXPECT_TRUE(has_capability(module, 5116));
  EXPECT_TRUE(has_capability(module, 5118));
  bool encoded = false;
  for (const Word& w : find(module, 22)) {
    encoded |= w.operands.size() == 3 && w.operands[1] == 16 && w.operands[2] == 0;
  }
  EXPECT_TRUE(encoded);
  VulkanTarget narrow = full_target();
  narrow.int16 = false;
  EXPECT_THROW(compile_spirv(product({.scalar = Scalar::BF16}), narrow), Error);
}

TEST(SpirvFragments, BarriersMakeMemoryVisible) {
  const auto module = walk(compile_spirv(product({}), full_target()));
  const auto barriers = find(module, 224);
  ASSERT_EQ(barriers.size(), 2u);
  for (const Word& b : barriers) {
    EXPECT_EQ(constant_of(module, b.operands[0]), 2u);
    EXPECT_EQ(constant_of(module, b.operands[2]), 0x8u | 0x100 | 0x2000 | 0x4000);
  }
}

TEST(SpirvFragments, FillConvertsTheScalar) {
  for (Scalar s : {Scalar::F16, Scalar::BF16, Scalar::F32}) {
    const auto module = walk(compile_spirv(traced([s] {
                                             Buffer out = param_buffer(s);
                                             const Type t = fragment_type(FragUse::C, s, 16, 16);
                                             frag_store(out, U32(0), U32(16), Layout::RowMajor,
                                                        frag_fill(t, F32(1.5f)));
                                           }),
                                           full_target()));
    EXPECT_EQ(find(module, 115).size(), s == Scalar::F32 ? 0u : 1u);  // OpFConvert
    EXPECT_EQ(find(module, 80).size(), 1u);                           // OpCompositeConstruct
  }
}

TEST(SpirvFragments, MissingCapabilities) {
  const auto message = [](const VulkanTarget& t, Scalar s = Scalar::F16) {
    try {
      compile_spirv(product({.scalar = s}), t);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::MissingCapability);
      return e.message();
    }
    return std::string("no error");
  };
  VulkanTarget t = full_target();
  t.coop_matrix = false;
  EXPECT_EQ(message(t), "kernel test needs cooperative matrices, which the device lacks");
  t = full_target();
  t.vulkan_memory_model = false;
  EXPECT_EQ(message(t), "kernel test needs the Vulkan memory model, which the device lacks");
  t = full_target();
  t.bf16 = false;
  EXPECT_EQ(message(t, Scalar::BF16),
            "kernel test needs bfloat16 fragments, which the device lacks");
  EXPECT_EQ(message(t), "no error");
}

TEST(SpirvFragments, NoBf16Arithmetic) {
  EXPECT_THROW(compile_spirv(traced([] {
                               const Type t = fragment_type(FragUse::C, Scalar::BF16, 16, 16);
                               const Value f = frag_fill(t, F32(1.0f));
                               frag_mul(f, f);
                             }),
                             full_target()),
               Error);
}

}  // namespace
}  // namespace oa::codegen::spirv::test
