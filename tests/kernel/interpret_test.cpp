// The reference interpreter: results, and every kind of mistake that it must report.
#include "oa/kernel/interpret.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "oa/core/dtype.h"
#include "oa/core/error.h"
#include "oa/kernel/lang.h"
#include "oa/kernel/parse.h"
#include "oa/kernel/verify.h"

namespace oa::kernel {
namespace {

template <class T>
BufferView view(std::vector<T>& v, u64 address = 0) {
  return {address ? address : reinterpret_cast<u64>(v.data()), v.data(), v.size() * sizeof(T)};
}

Target gpu(u32 subgroup) {
  Target t;
  t.kind = Target::Kind::Vulkan;
  t.subgroup = subgroup;
  return t;
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.message();
  }
  return "no error";
}

constexpr u64 kBase = 0x10000;

// What follows `kernel: instruction: ` (the numbers of operands depend on the host's compiler,
// which may evaluate the arguments of a traced call in any order).
std::string what(const std::string& e) {
  const size_t name = e.find(": ");
  const size_t instr = name == e.npos ? e.npos : e.find(": ", name + 2);
  return instr == e.npos ? e : e.substr(instr + 2);
}

// Runs a kernel over one buffer of floats; returns what is wrong.
std::string run_floats(const Kernel& k, std::vector<f32>& data, u32 groups = 1,
                       const InterpretOptions& options = {}) {
  verify(k);
  const u64 args[] = {kBase};
  const BufferView views[] = {view(data, kBase)};
  return what(error_of([&] { interpret(k, args, views, groups, options); }));
}

TEST(Interpret, RunsAxpyForOddSizesAndAllWidths) {
  for (u32 width : {1u, 4u, 16u, 64u}) {
    const Kernel k = trace("axpy", gpu(4), width, [] {
      Buffer x = param_buffer(Scalar::F16), y = param_buffer(Scalar::F32);
      U32 n = param_u32();
      F32 a = param_f32();
      For(group() * kernel::width() + lane(), n, group_count() * kernel::width(),
          [&](U32 i) { y[i] = fma(F32(x[i]), a, F32(y[i])); });
    });
    for (u32 n : {0u, 1u, 3u, 63u, 129u}) {
      std::vector<u16> x(n);
      std::vector<f32> y(n), expected(n);
      for (u32 i = 0; i < n; ++i) {
        x[i] = f32_to_f16(0.1f * static_cast<f32>(i));
        y[i] = static_cast<f32>(i) * 0.3f;
        expected[i] = std::fma(f16_to_f32(x[i]), 1.7f, y[i]);
      }
      const u64 args[] = {0x1000, 0x80000, n, std::bit_cast<u32>(1.7f)};
      const BufferView views[] = {view(x, 0x1000), view(y, 0x80000)};
      interpret(k, args, views, 3);
      EXPECT_EQ(y, expected) << width << " " << n;
    }
  }
}

TEST(Interpret, ReducesOverSubgroupsAndGroups) {
  for (u32 subgroup : {1u, 2u, 8u, 32u}) {
    const Kernel k = trace("sum", gpu(subgroup), 32, [] {
      Buffer x = param_buffer(Scalar::F32);
      F32 total(group_reduce(F32(x[lane()]), [](const Value& a, const Value& b) { return a + b; }));
      barrier(kDeviceMemory);
      x[lane()] = total;
    });
    std::vector<f32> data(32);
    std::iota(data.begin(), data.end(), 1.0f);
    EXPECT_EQ(run_floats(k, data), "no error");
    EXPECT_EQ(data, std::vector<f32>(32, 528.0f));
  }
}

TEST(Interpret, MasksDivergentFlow) {
  const Kernel k = trace("diverge", gpu(4), 8, [] {
    Buffer x = param_buffer(Scalar::F32);
    Var<F32> v(0.0f);
    Var<U32> n(0u);
    While([&] { return *n < lane(); },
          [&] {
            n += U32(1);
            If(*n == U32(3), [&] { v += F32(100.0f); }, [&] { v += F32(1.0f); });
          });
    For(lane(), U32(5), U32(2), [&](U32) { v += F32(0.25f); });
    x[lane()] = *v;
  });
  std::vector<f32> data(8);
  EXPECT_EQ(run_floats(k, data), "no error");
  EXPECT_EQ(data, (std::vector<f32>{0.75f, 1.5f, 2.5f, 102.25f, 103.25f, 104, 105, 106}));
}

TEST(Interpret, NarrowElementsRoundAndTruncate) {
  const Kernel k = trace("narrow", gpu(1), 1, [] {
    Buffer bytes = param_buffer(Scalar::U8), half = param_buffer(Scalar::F16);
    Buffer brain = param_buffer(Scalar::BF16), flags = param_buffer(Scalar::Bool);
    bytes[U32(0)] = U32(0x1ff);
    bytes[U32(1)] = U32(bytes[U32(0)]) + U32(3);
    half[U32(0)] = F32(2049.0f);
    brain[U32(0)] = F32(257.0f);
    flags[U32(0)] = Bool(true);
    half[U32(1)] = F32(half[U32(0)]) + F32(brain[U32(0)]);
  });
  std::vector<u8> bytes(2), flags(1);
  std::vector<u16> half(2), brain(1);
  const u64 args[] = {0x1000, 0x2000, 0x3000, 0x4000};
  const BufferView views[] = {view(bytes, 0x1000), view(half, 0x2000), view(brain, 0x3000),
                              view(flags, 0x4000)};
  interpret(k, args, views, 1);
  EXPECT_EQ(bytes, (std::vector<u8>{0xff, 2}));
  EXPECT_EQ(f16_to_f32(half[0]), 2048.0f);
  EXPECT_EQ(bf16_to_f32(brain[0]), 256.0f);
  EXPECT_EQ(f16_to_f32(half[1]), 2304.0f);
  EXPECT_EQ(flags[0], 1);
}

TEST(Interpret, VectorsAtomicsAndCompareExchange) {
  const Kernel k = trace("mix", gpu(8), 8, [] {
    Buffer x = param_buffer(Scalar::U32);
    x.atomic(AtomicOp::Add, U32(0), lane());
    x.atomic(AtomicOp::Max, U32(1), lane());
    U32 old(x.compare_exchange(U32(2), U32(7), lane() + U32(20)));
    Value v = x.load(U32(4), 4);
    U32 sum = U32(extract(v, 0)) + U32(extract(v, 3));
    x.store(U32(8) + lane() * U32(2), vec({old, sum}));
  });
  std::vector<u32> x(24);
  x[2] = 7, x[4] = 100, x[7] = 11;
  const u64 args[] = {kBase};
  const BufferView views[] = {view(x, kBase)};
  interpret(k, args, views, 1);
  EXPECT_EQ(x[0], 28u);
  EXPECT_EQ(x[1], 7u);
  EXPECT_EQ(x[2], 20u);  // the first lane finds 7
  EXPECT_EQ(x[8], 7u);
  EXPECT_EQ(x[10], 20u);
  EXPECT_EQ(x[23], 111u);
}

TEST(Interpret, Fragments) {
  const Kernel k = trace("product", gpu(4), 8, [] {
    Buffer a = param_buffer(Scalar::F16), b = param_buffer(Scalar::F16);
    Buffer c = param_buffer(Scalar::F32);
    // Each subgroup makes its own 16 x 8 half of the result.
    const Value half = lane() / U32(4) * U32(8);
    Value fa = frag_load(fragment_type(FragUse::A, Scalar::F16, 16, 4), a, U32(0), U32(4),
                         Layout::RowMajor);
    Value fb = frag_load(fragment_type(FragUse::B, Scalar::F16, 4, 8), b, half * U32(4), U32(4),
                         Layout::ColMajor);
    Value acc = frag_fill(fragment_type(FragUse::C, Scalar::F32, 16, 8), F32(1.0f));
    acc = frag_mul_add(fa, fb, acc);
    acc = frag_add(acc, frag_mul(acc, acc));
    frag_store(c, half, U32(16), Layout::RowMajor, acc);
  });
  verify(k);
  std::vector<u16> a(64), b(64);
  std::vector<f32> c(256);
  for (u32 i = 0; i < 64; ++i) {
    a[i] = f32_to_f16(static_cast<f32>(i % 7) - 3.0f);
    b[i] = f32_to_f16(static_cast<f32>(i % 5) * 0.5f);
  }
  const u64 args[] = {0x1000, 0x2000, 0x3000};
  const BufferView views[] = {view(a, 0x1000), view(b, 0x2000), view(c, 0x3000)};
  interpret(k, args, views, 1);
  for (u32 row = 0; row < 16; ++row) {
    for (u32 col = 0; col < 16; ++col) {
      f32 sum = 1.0f;
      for (u32 n = 0; n < 4; ++n) sum += f16_to_f32(a[row * 4 + n]) * f16_to_f32(b[col * 4 + n]);
      EXPECT_EQ(c[row * 16 + col], sum + sum * sum) << row << " " << col;
    }
  }
}

TEST(Interpret, ReportsAccessOutOfBounds) {
  const Kernel k = trace("oob", gpu(4), 4, [] {
    Buffer x = param_buffer(Scalar::F32);
    x[lane() + group() * U32(4)] = F32(1.0f);
  });
  std::vector<f32> data(7);
  EXPECT_EQ(run_floats(k, data, 2),
            "out of bounds, got index 7, expected 0 .. 6 of the 28 bytes at "
            "0x10000 (group 1, lane 3)");
  const Kernel below = trace("below", gpu(1), 1, [] {
    Buffer x = param_buffer(Scalar::F32);
    x[I32(-1)] = F32(1.0f);
  });
  EXPECT_EQ(run_floats(below, data),
            "out of bounds, got index -1, expected 0 .. 6 of the 28 bytes at "
            "0x10000 (group 0, lane 0)");
  // A neighbour in the address space is no excuse.
  std::vector<f32> other(8);
  const u64 args[] = {kBase};
  const BufferView views[] = {view(data, kBase), view(other, kBase + 28)};
  EXPECT_NE(error_of([&] { interpret(k, args, views, 2); }).find("got index 7"), std::string::npos);
  const u64 nowhere[] = {0x50};
  EXPECT_EQ(what(error_of([&] { interpret(below, nowhere, views, 1); })),
            "out of bounds, got index -1 from address 0x50, which is in "
            "no buffer (group 0, lane 0)");
  const u64 odd[] = {kBase + 2};
  EXPECT_EQ(what(error_of([&] { interpret(k, odd, views, 1); })),
            "misaligned, got address 0x10002, expected a multiple of 4 "
            "(group 0, lane 0)");
}

TEST(Interpret, ReportsSharedAndVectorIndices) {
  std::vector<f32> data(16);
  const Kernel shared = trace("s", gpu(4), 4, [] {
    param_u64();
    Shared s(Scalar::F32, 3);
    s[lane()] = F32(1.0f);
  });
  EXPECT_EQ(run_floats(shared, data),
            "out of bounds, got index 3, expected 0 .. 2 of s0 (group 0, "
            "lane 3)");
  const Kernel vector = trace("v", gpu(4), 4, [] {
    Buffer x = param_buffer(Scalar::F32);
    x.load(lane() * U32(2), 4);
  });
  EXPECT_EQ(run_floats(vector, data),
            "index of a vector, got 2, expected a multiple of 4 (group 0, "
            "lane 1)");
}

TEST(Interpret, ReportsReadsOfWhatWasNeverWritten) {
  std::vector<f32> data(8);
  const Kernel shared = trace("s", gpu(4), 4, [] {
    Buffer x = param_buffer(Scalar::F32);
    Shared s(Scalar::F32, 8);
    s[lane()] = F32(1.0f);
    barrier();
    x[lane()] = s[lane() + U32(1)];
  });
  EXPECT_EQ(run_floats(shared, data),
            "reads shared memory that was never written, at index 4 (group 0, lane 3)");
  // The next workgroup finds shared memory empty again.
  const Kernel stale = trace("s", gpu(1), 1, [] {
    param_u64();
    Shared s(Scalar::F32, 8);
    If(group() == U32(0), [&] { s[U32(0)] = F32(1.0f); });
    s[U32(1)] = s[U32(0)];
  });
  EXPECT_NE(run_floats(stale, data, 2).find("at index 0 (group 1, lane 0)"), std::string::npos);
  const Kernel var = trace("v", gpu(4), 4, [] {
    Buffer x = param_buffer(Scalar::F32);
    VarValue v(Type{Scalar::F32});
    If(lane() != U32(2), [&] { v.set(F32(1.0f)); });
    x[lane()] = *v;
  });
  EXPECT_NE(run_floats(var, data).find("reads a variable that was never written (group 0, lane 2)"),
            std::string::npos);

  const Kernel copy = trace("copy", gpu(4), 4, [] {
    Buffer x = param_buffer(Scalar::F32);
    x[lane() + U32(4)] = x[lane()];
  });
  std::vector<bool> written(32);
  std::fill_n(written.begin(), 16, true);
  const u64 args[] = {kBase};
  BufferView views[] = {view(data, kBase)};
  views[0].initialised = &written;
  interpret(copy, args, views, 1);
  EXPECT_EQ(written, std::vector<bool>(32, true));
  written[6] = false;
  EXPECT_NE(error_of([&] { interpret(copy, args, views, 1); })
                .find("reads memory that was never written, at byte 6 of the 32 bytes at 0x10000 "
                      "(group 0, lane 1)"),
            std::string::npos);
}

// Each body touches the buffer or shared memory without a needed barrier.
TEST(Interpret, ReportsMissingBarriers) {
  std::vector<f32> data(64);
  const auto result = [&](const std::function<void(Buffer&, Shared&)>& body) {
    const Kernel k = trace("race", gpu(2), 4, [&] {
      Buffer x = param_buffer(Scalar::F32);
      Shared s(Scalar::F32, 16);
      s[lane()] = F32(0.0f);
      barrier();
      body(x, s);
    });
    return run_floats(k, data);
  };
  EXPECT_EQ(
      result([](Buffer&, Shared& s) {
        s[lane()] = F32(1.0f);
        s.load(lane() ^ U32(1));
      }),
      "missing barrier, the cell was written by lane 1 since the last one, at index 1 (group 0, "
      "lane 0)");
  EXPECT_EQ(result([](Buffer&, Shared& s) {
              s.load(lane() ^ U32(1));
              s[lane()] = F32(1.0f);
            }),
            "missing barrier, the cell was read by lane 1 since the last one, at index 0 (group 0, "
            "lane 0)");
  EXPECT_EQ(
      result([](Buffer&, Shared& s) { s[U32(5)] = cast<F32>(lane()); }),
      "missing barrier, the cell was written by lane 0 since the last one, at index 5 (group 0, "
      "lane 1)");
  EXPECT_EQ(result([](Buffer&, Shared& s) { s[U32(5)] = F32(3.0f); }), "no error");
  EXPECT_EQ(
      result([](Buffer& x, Shared&) {
        x[lane()] = F32(1.0f);
        barrier();  // orders shared memory only
        x.load(lane() ^ U32(2));
      }),
      "missing barrier, the cell was written by lane 2 since the last one, at byte 8 of the 256 "
      "bytes at 0x10000 (group 0, lane 0)");
  EXPECT_EQ(result([](Buffer& x, Shared&) {
              x[lane()] = F32(1.0f);
              barrier(kDeviceMemory);
              x.load(lane() ^ U32(2));
            }),
            "no error");
  EXPECT_EQ(result([](Buffer&, Shared& s) {
              s[lane()] = F32(1.0f);
              barrier();
              s.load(lane() ^ U32(1));
              s.load(lane() ^ U32(2));
            }),
            "no error");
  // The second round of a loop meets the reads of the first.
  EXPECT_NE(result([](Buffer&, Shared& s) {
              For(U32(0), U32(2), U32(1), [&](U32) {
                s[lane()] = F32(1.0f);
                barrier();
                s.load(lane() ^ U32(1));
              });
            }).find("the cell was read by lane 1"),
            std::string::npos);
  const Kernel atomic = trace("race", gpu(4), 4, [] {
    Buffer x = param_buffer(Scalar::F32);
    Shared s(Scalar::U32, 1);
    s[U32(0)] = U32(0);
    barrier();
    s.atomic(AtomicOp::Add, U32(0), U32(1));
    s.atomic(AtomicOp::Add, U32(0), U32(1));
    x[lane()] = cast<F32>(U32(s[U32(0)]));
  });
  EXPECT_NE(run_floats(atomic, data).find("the cell was changed atomically by several lanes"),
            std::string::npos);
  const Kernel bytes = trace("bytes", gpu(4), 4, [] {
    Buffer x(Scalar::U8, param_u64());
    x[lane()] = U32(3);  // neighbours in one word are no race
  });
  EXPECT_EQ(run_floats(bytes, data), "no error");
}

TEST(Interpret, ReportsRacesBetweenGroups) {
  std::vector<f32> data(16);
  const auto result = [&](const std::function<void(Buffer&)>& body) {
    return run_floats(trace("race", gpu(2), 2,
                            [&] {
                              Buffer x(Scalar::U32, param_u64());
                              body(x);
                            }),
                      data, 3);
  };
  EXPECT_EQ(result([](Buffer& x) { x[lane()] = group(); }),
            "race between groups, the cell was written by group 0, at byte 0 of the 64 bytes at "
            "0x10000 (group 1, lane 0)");
  EXPECT_EQ(result([](Buffer& x) { x[lane()] = U32(1); }).substr(0, 19), "race between groups");
  EXPECT_EQ(result([](Buffer& x) { x.load(lane()); }), "no error");
  EXPECT_EQ(result([](Buffer& x) { x.atomic(AtomicOp::Add, U32(0), U32(1)); }), "no error");
  EXPECT_EQ(result([](Buffer& x) {
              x.load(U32(3) - group());
              If(group() == U32(2), [&] { x[U32(2)] = U32(1); });
            }),
            "race between groups, the cell was read by group 1, at byte 8 of the 64 bytes at "
            "0x10000 (group 2, lane 0)");
  EXPECT_EQ(result([](Buffer& x) {
              If(group() == U32(0), [&] { x[U32(0)] = U32(1); });
              x.atomic(AtomicOp::Add, U32(0), U32(1));
            }).substr(0, 15),
            "missing barrier");  // first within group 0
}

TEST(Interpret, ReportsDivergentBarriersAndShuffles) {
  std::vector<f32> data(8);
  const auto result = [&](const std::string& body) {
    const Kernel k = parse(
        "kernel \"k\" width 8 subgroup 4 params 1 {\n%0 = param u64 0\n%1 = lane_id u32\n"
        "%2 = const u32 4\n%3 = lt bool %1, %2\n%4 = const u32 1\n%5 = eq bool %1, %4\n" +
        body + "\n}");
    const u64 args[] = {kBase};
    const BufferView views[] = {view(data, kBase)};
    const std::string e = error_of([&] { interpret(k, args, views, 1); });
    return e.starts_with("k: ") ? e.substr(3) : e;
  };
  EXPECT_EQ(result("if %3 {\nbarrier shared\n}"),
            "barrier shared: the lane does not reach the barrier (group 0, lane 4)");
  EXPECT_EQ(result("if %3 {\n%9 = shuffle u32 %1, %4\n}"), "no error");  // a whole subgroup
  EXPECT_EQ(result("if %5 {\n%9 = shuffle_xor u32 1 %1\n}"),
            "%7 = shuffle_xor u32 1 %1: the lane is not there, in divergent control flow (group 0, "
            "lane 0)");
  EXPECT_EQ(result("%9 = shuffle u32 %1, %1"),
            "%6 = shuffle u32 %1, %1: source lane, got 4, expected below 4 (group 0, lane 4)");
}

TEST(Interpret, ReportsBadLoops) {
  std::vector<f32> data(8);
  const auto result = [&](const std::string& body, u64 max_steps = 100'000) {
    const Kernel k = parse(
        "kernel \"k\" width 4 subgroup 4 params 0 {\n%0 = lane_id u32\n"
        "%1 = const u32 4294967295\n%2 = const u32 7\n%3 = const bool true\n" +
        body + "\n}");
    InterpretOptions options{.max_steps = max_steps};
    const std::string e = error_of([&] { interpret(k, {}, {}, 1, options); });
    return e.starts_with("k: ") ? e.substr(3) : e;
  };
  EXPECT_EQ(result("%9 = for u32 %2, %2, %0 {\n}"),
            "%4 = for u32 %2, %2, %0: the step differs between lanes, got 1, expected 0 (group 0, "
            "lane 1)");
  EXPECT_EQ(result("%8 = const u32 0\n%9 = for u32 %2, %1, %8 {\n}"),
            "%5 = for u32 %2, %1, %4: the step is not positive (group 0, lane 0)");
  EXPECT_EQ(result("%8 = const u32 4000000000\n%9 = for u32 %2, %1, %8 {\n}"),
            "%5 = for u32 %2, %1, %4: the index overflows its type (group 0, lane 0)");
  EXPECT_EQ(result("while {\nyield %3\n} do {\n}"),
            "while: still running after 100000 steps (group 0, lane 0)");
  EXPECT_EQ(result("%9 = for u32 %2, %1, %2 {\n}"),
            "%4 = for u32 %2, %1, %2: still running after 100000 steps (group 0, lane 0)");
}

TEST(Interpret, RefusesBadArguments) {
  const Kernel k = trace("k", gpu(1), 1, [] { param_u64(); });
  EXPECT_EQ(error_of([&] { interpret(k, {}, {}, 1); }), "parameters of k, got 0, expected 1");
  std::vector<f32> a(4), b(4);
  const u64 args[] = {0};
  const BufferView views[] = {view(a, 0x100), view(b, 0x10c)};
  EXPECT_EQ(error_of([&] { interpret(k, args, views, 1); }),
            "buffers overlap, got 0x100 with 16 bytes and 0x10c");
}

}  // namespace
}  // namespace oa::kernel
