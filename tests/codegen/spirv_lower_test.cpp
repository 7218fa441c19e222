// Every instruction and element type, lowered and validated.
#include "oa/core/error.h"
#include "tests/codegen/spirv_support.h"

namespace oa::codegen::spirv::test {
namespace {

using namespace oa::kernel;

void expect_valid(const Kernel& k, const VulkanTarget& target) {
  std::vector<u32> words;
  ASSERT_NO_THROW(words = compile_spirv(k, target));
  EXPECT_EQ(validate(words), "");
}

// Valid with and without corrections and fused multiply-add.
void expect_valid_everywhere(const Kernel& k) {
  for (int i = 0; i < 4; ++i) {
    VulkanTarget t = full_target();
    t.fused_fma = i & 1;
    t.exact_division = i & 2;
    expect_valid(k, t);
  }
}

constexpr Scalar kValueScalars[] = {Scalar::I32, Scalar::U32, Scalar::I64,
                                    Scalar::U64, Scalar::F32, Scalar::F64};
constexpr Scalar kElements[] = {Scalar::Bool, Scalar::U8,  Scalar::I32,  Scalar::U32, Scalar::I64,
                                Scalar::U64,  Scalar::F16, Scalar::BF16, Scalar::F32, Scalar::F64};

class OnScalar : public testing::TestWithParam<Scalar> {};
INSTANTIATE_TEST_SUITE_P(Spirv, OnScalar, testing::ValuesIn(kValueScalars),
                         [](const auto& param) { return std::string(name(param.param)); });

class OnElement : public testing::TestWithParam<Scalar> {};
INSTANTIATE_TEST_SUITE_P(Spirv, OnElement, testing::ValuesIn(kElements),
                         [](const auto& param) { return std::string(name(param.param)); });

void unary_kernel(Scalar s, Op op) {
  SCOPED_TRACE(name(op));
  expect_valid_everywhere(traced([&] {
    Buffer x = param_buffer(s), y = param_buffer(s);
    y[lane()] = unary(op, x[lane()]);
  }));
}

TEST_P(OnScalar, UnaryOperations) {
  const Scalar s = GetParam();
  for (Op op : {Op::Neg, Op::Abs}) unary_kernel(s, op);
  if (is_float(s)) {
    for (Op op : {Op::Sqrt, Op::Floor, Op::Ceil, Op::Trunc, Op::RoundEven}) unary_kernel(s, op);
  } else {
    unary_kernel(s, Op::Not);
  }
}

TEST_P(OnScalar, BinaryOperations) {
  const Scalar s = GetParam();
  std::vector<Op> ops = {Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Rem, Op::Min, Op::Max};
  if (!is_float(s)) {
    for (Op op : {Op::And, Op::Or, Op::Xor, Op::Shl, Op::Shr}) ops.push_back(op);
  }
  if (s == Scalar::U32) ops.push_back(Op::MulHi);
  for (Op op : ops) {
    SCOPED_TRACE(name(op));
    expect_valid_everywhere(traced([&] {
      Buffer x = param_buffer(s), y = param_buffer(s);
      y[lane()] = binary(op, x[lane()], y[lane()]);
    }));
  }
}

TEST_P(OnScalar, ComparisonsSelectAndFma) {
  const Scalar s = GetParam();
  for (Op op : {Op::Eq, Op::Ne, Op::Lt, Op::Le, Op::Gt, Op::Ge}) {
    SCOPED_TRACE(name(op));
    expect_valid_everywhere(traced([&] {
      Buffer x = param_buffer(s), y = param_buffer(s);
      const Value a = x[lane()], b = y[lane()];
      y[lane()] = select(compare(op, a, b), a, b);
    }));
  }
  if (is_float(s)) {
    expect_valid_everywhere(traced([&] {
      Buffer x = param_buffer(s);
      const Value a = x[lane()];
      x[lane()] = fma(a, a, constant(s, 0.5));
    }));
  }
}

TEST_P(OnScalar, DivisionByConstants) {
  const Scalar s = GetParam();
  for (i64 d : {-1, 0, 1, 7}) {
    if (d < 0 && !is_signed(s) && !is_float(s)) continue;
    expect_valid_everywhere(traced([&] {
      Buffer x = param_buffer(s);
      const Value a = x[lane()];
      x[lane()] = a / constant_int(s, d) + a % constant_int(s, d);
    }));
  }
}

TEST_P(OnScalar, CastsToEveryType) {
  const Scalar s = GetParam();
  for (Scalar to : {Scalar::Bool, Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64, Scalar::F32,
                    Scalar::F64}) {
    SCOPED_TRACE(name(to));
    expect_valid_everywhere(traced([&] {
      Buffer x = param_buffer(s), y = param_buffer(to);
      y[lane()] = cast(Value(x[lane()]), to);
      x[lane()] = cast(Value(y[lane()]), s);
    }));
  }
}

TEST_P(OnScalar, Bitcasts) {
  const Scalar s = GetParam();
  for (Scalar to : kValueScalars) {
    if (size_bytes(to) != size_bytes(s)) continue;
    expect_valid_everywhere(traced([&] {
      Buffer x = param_buffer(s), y = param_buffer(to);
      y[lane()] = bitcast(Value(x[lane()]), to);
    }));
  }
}

TEST_P(OnScalar, VectorsVariablesAndShuffles) {
  const Scalar s = GetParam();
  for (u32 lanes : {1u, 2u, 4u}) {
    SCOPED_TRACE(lanes);
    expect_valid_everywhere(traced([&] {
      Buffer x = param_buffer(s);
      const U32 at = lane() * U32(lanes);
      VarValue state(x.load(at, lanes));
      const Value moved = shuffle(shuffle_xor(*state, 5), lane() % U32(32));
      const Bool flag = subgroup_any(lane() == U32(3)) | subgroup_all(lane() < U32(9));
      state = select(shuffle(flag, U32(1)), moved, *state);
      std::vector<Value> parts;
      for (u32 i = 0; i < lanes; ++i) parts.push_back(extract(*state, lanes - 1 - i));
      x.store(at, vec(parts));
    }));
  }
}

TEST_P(OnElement, LoadsAndStoresOfEveryWidth) {
  const Scalar e = GetParam();
  for (u32 lanes : {1u, 2u, 4u}) {
    for (Scalar index : {Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64}) {
      SCOPED_TRACE(lanes);
      expect_valid(traced([&] {
                     Buffer x = param_buffer(e), y = param_buffer(e);
                     const Value at = cast(lane() * U32(lanes), index);
                     y.store(at, x.load(at, lanes));
                     y.store(constant_int(index, 4), x.load(constant_int(index, 0), lanes));
                   }),
                   full_target());
    }
  }
}

TEST_P(OnElement, SharedMemory) {
  const Scalar e = GetParam();
  for (const VulkanTarget& target : {full_target(), [] {
                                       VulkanTarget t = full_target();
                                       t.int8 = t.int16 = false;
                                       return t;
                                     }()}) {
    for (u32 lanes : {1u, 2u, 4u}) {
      for (u32 count : {64u * 4u, 64u * 4u + 2u, 64u * 4u + 1u}) {
        SCOPED_TRACE(count);
        const Kernel k = traced([&] {
          Buffer x = param_buffer(e);
          Shared cells(e, count);
          cells.store(lane() * U32(lanes), x.load(lane() * U32(lanes), lanes));
          barrier();
          cells[lane() + U32(1)] = Value(cells[lane()]);
          barrier(kSharedMemory | kDeviceMemory);
          x[lane()] = extract(cells.load(lane() * U32(lanes), lanes), lanes - 1);
        });
        expect_valid(k, target);
      }
    }
  }
}

TEST(Spirv, ValidatorIsAwake) {
  std::vector<u32> words = compile_spirv(traced([] {}), full_target());
  EXPECT_EQ(validate(words), "");
  for (u32& w : words) {
    if (w == (5u << 16 | 128)) w = 5u << 16 | 129;  // OpIAdd becomes OpFAdd
  }
  EXPECT_NE(validate(words), "");
}

TEST(Spirv, SharedBytesCountWidenedCells) {
  const Kernel k = traced(
      [] { Shared a(Scalar::U8, 10), b(Scalar::BF16, 3), c(Scalar::F32, 5), d(Scalar::F16, 2); });
  VulkanTarget t = full_target();
  EXPECT_EQ(shared_bytes(k, t), 10u + 6 + 20 + 4);
  t.int8 = t.int16 = false;
  EXPECT_EQ(shared_bytes(k, t), 40u + 12 + 20 + 4);
}

TEST(Spirv, BoolLogic) {
  expect_valid(traced([] {
                 Buffer x = param_buffer(Scalar::Bool), y = param_buffer(Scalar::F32);
                 const Bool a(x[lane()]), b(x[lane() + U32(1)]);
                 const Bool c = ((a & b) | !a) ^ b;
                 x[lane()] = select(c == a, b, c != b);
                 y[lane()] = cast<F32>(c) + cast<F32>(cast<I32>(c));
                 Var<Bool> v(c);
                 v = cast<Bool>(F32(y[lane()]));
                 x[lane()] = *v;
               }),
               full_target());
}

TEST(Spirv, Atomics) {
  for (Scalar s : {Scalar::I32, Scalar::U32}) {
    for (AtomicOp op : {AtomicOp::Add, AtomicOp::Min, AtomicOp::Max, AtomicOp::And, AtomicOp::Or,
                        AtomicOp::Exchange}) {
      expect_valid(traced([&] {
                     Buffer x = param_buffer(s);
                     Shared cells(s, 8);
                     const Value one = constant_int(s, 1);
                     const Value old = x.atomic(op, lane(), one);
                     cells.atomic(op, lane() % U32(8), old);
                     x.compare_exchange(U32(0), old, one);
                   }),
                   full_target());
    }
  }
}

TEST(Spirv, AtomicOperandsAreInOrder) {
  const Kernel k = traced([&] {
    Buffer x = param_buffer(Scalar::U32);
    x[0] = x.compare_exchange(U32(0), U32(111), U32(222));
  });
  const auto module = walk(compile_spirv(k, full_target()));
  const auto swap = find(module, 230);  // OpAtomicCompareExchange
  ASSERT_EQ(swap.size(), 1u);
  const auto constant_of = [&](u32 id) {
    for (const Word& w : find(module, 43)) {
      if (w.operands[1] == id) return w.operands[2];
    }
    return ~0u;
  };
  EXPECT_EQ(constant_of(swap[0].operands[6]), 222u);  // the new value stands before the comparator
  EXPECT_EQ(constant_of(swap[0].operands[7]), 111u);
  EXPECT_EQ(constant_of(swap[0].operands[3]), 1u);  // device scope
  EXPECT_EQ(constant_of(swap[0].operands[4]), 0u);  // relaxed
}

TEST(Spirv, ControlFlow) {
  expect_valid(traced([] {
                 Buffer x = param_buffer(Scalar::F32);
                 U32 n = param_u32();
                 Var<F32> sum(0.0f);
                 For(lane(), n, U32(64), [&](U32 i) {
                   If(
                       i % U32(3) == U32(0), [&] { sum += F32(x[i]); },
                       [&] {
                         Var<U32> j(i);
                         While([&] { return (*j > U32(1)) & (*sum < F32(100.0f)); },
                               [&] {
                                 j = *j / U32(2);
                                 If(*j == U32(7), [&] { sum -= F32(1.0f); });
                               });
                       });
                   For(U32(0), i, U32(1), [&](U32 k) { sum += cast<F32>(k); });
                 });
                 If(lane() == U32(0), [] {});
                 x[lane()] = *sum;
               }),
               full_target());
}

TEST(Spirv, LoopsOverEveryIndexType) {
  for (Scalar s : {Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64}) {
    expect_valid(traced([&] {
                   Buffer x = param_buffer(s);
                   For(constant_int(s, 0), constant_int(s, 5), constant_int(s, 2),
                       [&](const Value& i) { x[i] = i; });
                 }),
                 full_target());
  }
}

// A condition with its own branches, and a body that ends in one: phis and merges must name the
// blocks where control really comes from.
TEST(Spirv, LoopsThatEndInsideOtherBlocks) {
  expect_valid(traced([] {
                 Buffer x = param_buffer(Scalar::U32);
                 Var<U32> v(0);
                 If(lane() < U32(4), [&] { v = U32(2); });
                 For(*v, U32(9), U32(1),
                     [&](U32 i) { If(i == U32(3), [&] { v = i; }, [&] { v = U32(0); }); });
                 While(
                     [&] {
                       Var<Bool> go(false);
                       If(*v < U32(5), [&] { go = Bool(true); });
                       return *go;
                     },
                     [&] { If(*v < U32(7), [&] { v += U32(1); }); });
                 x[lane()] = *v;
               }),
               full_target());
}

TEST(Spirv, FloatRemainderInsideALoop) {
  expect_valid(traced([] {
                 Buffer x = param_buffer(Scalar::F32);
                 For(U32(0), U32(3), U32(1),
                     [&](U32 i) { x[i] = F32(x[i]) % F32(3.0f) % cast<F32>(i); });
               }),
               full_target());
}

TEST(Spirv, GroupReduction) {
  for (u32 width : {1u, 8u, 32u, 64u, 256u}) {
    expect_valid(traced(
                     [] {
                       Buffer x = param_buffer(Scalar::F32);
                       x[group()] =
                           group_reduce(F32(x[lane()]),
                                        [](const Value& a, const Value& b) { return max(a, b); });
                     },
                     width),
                 full_target());
  }
}

TEST(Spirv, ParametersOfEveryType) {
  const auto body = [](u32 count) {
    return traced([&] {
      Buffer out = param_buffer(Scalar::U64);
      out[0] = param_u64();
      Buffer f(Scalar::F32, out.address());
      f[2] = param_f32();
      for (u32 i = 3; i < count; ++i) f[i] = cast<F32>(param_u32());
      f[3] = cast<F32>(group_count());
    });
  };
  for (u32 count : {3u, 15u, 16u, 40u}) {
    SCOPED_TRACE(count);
    const Kernel k = body(count);
    EXPECT_EQ(k.params, count);
    expect_valid(k, full_target());
  }
  expect_valid(traced([] {}), full_target());
  EXPECT_FALSE(push_constants(15, 128).in_block);
  EXPECT_EQ(push_constants(15, 128).bytes, 128u);
  EXPECT_TRUE(push_constants(16, 128).in_block);
  EXPECT_EQ(push_constants(16, 128).bytes, 16u);
  EXPECT_EQ(push_constants(0, 128).bytes, 8u);
}

TEST(Spirv, BareTargetCompilesWordKernels) {
  const VulkanTarget t = bare_target();
  expect_valid(traced([] {
                 Buffer x = param_buffer(Scalar::F32);
                 Shared s(Scalar::U8, 64);
                 s[lane()] = cast<U32>(F32(x[lane()]));
                 barrier();
                 x[lane()] = cast<F32>(U32(s[lane() ^ U32(1)])) / F32(3.0f);
               }),
               t);
  const auto module = walk(compile_spirv(traced([] {}), t));
  EXPECT_FALSE(has_capability(module, 4466));  // SignedZeroInfNanPreserve
  EXPECT_TRUE(has_capability(walk(compile_spirv(traced([] {}), full_target())), 4466));
}

void expect_missing(const Kernel& k, const VulkanTarget& t, const std::string& what) {
  try {
    compile_spirv(k, t);
    ADD_FAILURE() << "no error about " << what;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::MissingCapability);
    EXPECT_EQ(e.message(), "kernel " + k.name + " needs " + what + ", which the device lacks");
  }
}

TEST(Spirv, MissingCapabilitiesNameTheKernel) {
  const auto copy = [](Scalar s) {
    return traced(
        [s] {
          Buffer x = param_buffer(s);
          x[1] = Value(x[0]);
        },
        64, "copy");
  };
  const VulkanTarget t = bare_target();
  expect_missing(copy(Scalar::F64), t, "64-bit floats");
  expect_missing(copy(Scalar::U8), t, "8-bit storage");
  expect_missing(copy(Scalar::Bool), t, "8-bit storage");
  expect_missing(copy(Scalar::F16), t, "16-bit storage");
  expect_missing(copy(Scalar::BF16), t, "16-bit storage");
  VulkanTarget no_int64 = full_target();
  no_int64.int64 = false;
  expect_missing(copy(Scalar::F32), no_int64, "64-bit integers");
  expect_missing(traced([] { Shared s(Scalar::F16, 4); }, 64, "tile"), t,
                 "16-bit floats in workgroup memory");
}

TEST(Spirv, WordsAreDeterministicAndNameless) {
  const auto make = [](std::string name) {
    return traced(
        [] {
          Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F16);
          Shared s(Scalar::F32, 64);
          s[lane()] = F32(x[lane()]) / F32(y[lane()]);
          barrier();
          x[lane()] = sqrt(F32(s[lane()]));
        },
        64, std::move(name));
  };
  const auto a = compile_spirv(make("alpha_kernel"), full_target());
  const auto b = compile_spirv(make("b"), full_target());
  EXPECT_EQ(a, b);
  const std::string bytes(reinterpret_cast<const char*>(a.data()), a.size() * 4);
  EXPECT_EQ(bytes.find("alpha"), std::string::npos);
  VulkanTarget other = full_target();
  other.fused_fma = false;
  EXPECT_NE(compile_spirv(make("b"), other), a);
}

// The hash of a kernel ignores instructions in no region; so must the words.
TEST(Spirv, UnreachedInstructionsLeaveNoTrace) {
  Kernel k = traced([] {
    Buffer x = param_buffer(Scalar::F32);
    Shared s(Scalar::F32, 64);
    s[lane()] = F32(x[lane()]);
    barrier();
    x[lane()] = Value(s[lane()]);
  });
  const auto words = compile_spirv(k, full_target());
  k.instrs.push_back({.op = Op::SharedLoad, .type = Type{Scalar::F32, 4}, .slot = 0, .args = {0}});
  k.instrs.push_back({.op = Op::Barrier, .imm = kDeviceMemory});
  k.instrs.push_back({.op = Op::FragFill, .args = {0}});
  EXPECT_EQ(compile_spirv(k, full_target()), words);
}

TEST(Spirv, ArithmeticIsNeverContracted) {
  const Kernel k = traced([] {
    Buffer x = param_buffer(Scalar::F32);
    const F32 a(x[0]), b(x[1]);
    x[2] = a * b + a - b;
  });
  const auto module = walk(compile_spirv(k, full_target()));
  u32 arithmetic = 0, marked = 0;
  for (u32 op : {129u, 131u, 133u}) arithmetic += static_cast<u32>(find(module, op).size());
  for (const Word& w : find(module, 71)) marked += w.operands[1] == 42;  // NoContraction
  EXPECT_EQ(arithmetic, 3u);
  EXPECT_EQ(marked, 3u);
}

// Lanes that exchange data through device memory: non-private accesses of the Vulkan memory model,
// volatile ones without it. Other kernels keep plain accesses.
TEST(Spirv, DeviceBarriersReachPastCaches) {
  for (bool device : {false, true}) {
    for (bool model : {false, true}) {
      const Kernel k = traced([&] {
        Buffer x = param_buffer(Scalar::F32);
        x[lane()] = F32(1.0f);
        barrier(device ? kSharedMemory | kDeviceMemory : kSharedMemory);
        x[lane()] = Value(x[lane() ^ U32(1)]);
      });
      VulkanTarget t = full_target();
      t.vulkan_memory_model = model;
      expect_valid(k, t);
      const auto module = walk(compile_spirv(k, t));
      EXPECT_EQ(has_capability(module, 5345), device && model);
      EXPECT_EQ(find(module, 14)[0].operands[1], device && model ? 3u : 1u);
      u32 accesses = 0;
      for (const Word& w : find(module, 62)) {  // OpStore
        EXPECT_EQ(w.operands[2], !device ? 2u : model ? 0x22u : 3u);
        ++accesses;
      }
      EXPECT_EQ(accesses, 2u);
    }
  }
}

TEST(Spirv, WideLoadsAreOneAlignedInstruction) {
  const Kernel k = traced([] {
    Buffer x = param_buffer(Scalar::F32);
    x.store(lane() * U32(4), x.load(lane() * U32(4) + U32(256), 4));
  });
  const auto module = walk(compile_spirv(k, full_target()));
  u32 wide = 0;
  for (u32 op : {61u, 62u}) {
    for (const Word& w : find(module, op)) {
      const size_t n = w.operands.size();
      wide += n >= 4 && w.operands[n - 2] == 2 && w.operands[n - 1] == 16;
    }
  }
  EXPECT_EQ(wide, 2u);
}

TEST(Spirv, HintsReachTheDriver) {
  const auto body = [](bool hints) {
    return traced([hints] {
      const Buffer x = param_buffer(Scalar::U32), y = param_buffer(Scalar::U32);
      For(
          U32(0), U32(8), U32(1),
          [&](const Value& i) {
            const Value at = U32(U32(i) * width() + lane());
            y.store(at, hints ? x.load_constant(at) : x.load(at));
          },
          hints ? Unroll::Never : Unroll::Allowed);
    });
  };
  for (const bool hints : {false, true}) {
    const std::vector<u32> words = compile_spirv(body(hints), full_target());
    EXPECT_EQ(validate(words), "");
    size_t unwritable = 0, rolled = 0;
    for (const Word& w : walk(words)) {
      unwritable += w.op == 72 && w.operands[2] == 24;  // OpMemberDecorate NonWritable
      rolled += w.op == 246 && w.operands[2] == 2;      // OpLoopMerge DontUnroll
    }
    EXPECT_EQ(unwritable, hints ? 1u : 0u);
    EXPECT_EQ(rolled, hints ? 1u : 0u);
  }
}

TEST(Spirv, MalformedKernelsStopTheCompile) {
  const auto expect_internal = [](Kernel k, const std::string& part) {
    try {
      compile_spirv(k, full_target());
      ADD_FAILURE() << "no error: " << part;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::Internal);
      EXPECT_NE(e.message().find(part), std::string::npos) << e.message();
    }
  };
  expect_internal(traced([] { emit(Op::MulHi, Type{Scalar::I32}, {I32(1), I32(2)}); }),
                  "mul_hi in kernel test: on a type other than u32");
  expect_internal(traced([] { unary(Op::Floor, U32(1)); }), "floor in kernel test: on integers");
  expect_internal(traced([] { binary(Op::Xor, F32(1.0f), F32(2.0f)); }), "on floats");
  expect_internal(traced([] { binary(Op::Add, Bool(true), Bool(true)); }), "on bool");
  expect_internal(traced([] { compare(Op::Lt, Bool(true), Bool(true)); }), "on bool");
  expect_internal(traced([] { emit(Op::Param, Type{Scalar::U32}, {}, 3); }), "out of range");
  expect_internal(traced([] {
                    Buffer x = param_buffer(Scalar::F32);
                    x.atomic(AtomicOp::Add, U32(0), F32(1.0f));
                  }),
                  "element is not i32 or u32");
  Kernel other = traced([] { shuffle_xor(U32(1), 1); });
  other.subgroup = 16;
  expect_internal(other, "traced for other subgroups");
}

}  // namespace
}  // namespace oa::codegen::spirv::test
