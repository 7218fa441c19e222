// Matrix fragments on the CPU against plain loops.
#include <gtest/gtest.h>

#include <cmath>

#include "oa/core/dtype.h"
#include "oa/core/error.h"
#include "tests/codegen/gang.h"

namespace oa::codegen {
namespace {

using namespace oa::kernel;

struct Case {
  Scalar in;
  u32 m, n, k;
  Layout a, b, c;
};

u16 encode(Scalar s, f32 x) { return s == Scalar::F16 ? f32_to_f16(x) : f32_to_bf16(x); }

// D = (A x B + C) twice over, through a variable, with leading dimensions larger than the fragment.
void check(const CpuTarget& target, const Case& c, bool through_shared) {
  constexpr u32 kPad = 3;
  const auto lead = [&](Layout l, u32 rows, u32 cols) {
    return (l == Layout::RowMajor ? cols : rows) + kPad;
  };
  const u32 lda = lead(c.a, c.m, c.k), ldb = lead(c.b, c.k, c.n), ldc = lead(c.c, c.m, c.n);
  const auto at = [](Layout l, u32 ld, u32 r, u32 col) {
    return l == Layout::RowMajor ? r * ld + col : col * ld + r;
  };
  const u32 big = 24 * 24;
  std::vector<u16> a(big), b(big);
  std::vector<f32> d(big, -1.0f);
  std::vector<f64> want(c.m * c.n, 0.5);
  for (u32 r = 0; r < c.m; ++r) {
    for (u32 k = 0; k < c.k; ++k)
      a[at(c.a, lda, r, k)] = encode(c.in, static_cast<f32>(r * 3 + k * 5) / 8 - 4);
  }
  for (u32 k = 0; k < c.k; ++k) {
    for (u32 n = 0; n < c.n; ++n)
      b[at(c.b, ldb, k, n)] =
          encode(c.in, static_cast<f32>(k * 7 % 9) / 4 - static_cast<f32>(n % 5));
  }
  for (u32 r = 0; r < c.m; ++r) {
    for (u32 n = 0; n < c.n; ++n) {
      f64 sum = 0;
      for (u32 k = 0; k < c.k; ++k) {
        sum += static_cast<f64>(static_cast<f32>(r * 3 + k * 5) / 8 - 4) *
               (static_cast<f64>(k * 7 % 9) / 4 - n % 5);
      }
      want[r * c.n + n] += 2 * sum;
    }
  }
  const Kernel k = traced(16, [&] {
    const Buffer x = param_buffer(c.in), y = param_buffer(c.in), z = param_buffer(Scalar::F32);
    const Type ta = fragment_type(FragUse::A, c.in, c.m, c.k),
               tb = fragment_type(FragUse::B, c.in, c.k, c.n),
               tc = fragment_type(FragUse::C, Scalar::F32, c.m, c.n);
    const VarValue acc(frag_fill(tc, F32(0.5f)));
    const Shared copy(c.in, big), result(Scalar::F32, big);
    if (through_shared) {
      For(lane(), U32(big), U32(16), [&](U32 i) { copy[i] = F32(x[i]); });
      barrier();
    }
    For(U32(0), U32(2), U32(1), [&](U32) {
      const Value fa = through_shared ? frag_load(ta, copy, U32(0), U32(lda), c.a)
                                      : frag_load(ta, x, U32(0), U32(lda), c.a);
      acc.set(frag_mul_add(fa, frag_load(tb, y, U32(0), U32(ldb), c.b), *acc));
    });
    if (through_shared) {
      frag_store(result, U32(0), U32(ldc), c.c, *acc);
      barrier();
      const auto size = static_cast<u32>(at(c.c, ldc, c.m - 1, c.n - 1) + 1);
      For(lane(), U32(size), U32(16), [&](U32 i) {
        const U32 inner = i % ldc;
        If(inner < U32(ldc - kPad), [&] { z[i] = F32(result[i]); });
      });
    } else {
      frag_store(z, U32(0), U32(ldc), c.c, *acc);
    }
  });
  run_on(target, k, 1, {word(a), word(b), word(d)});
  std::vector<bool> inside(big);
  for (u32 r = 0; r < c.m; ++r) {
    for (u32 n = 0; n < c.n; ++n) {
      const u32 i = at(c.c, ldc, r, n);
      inside[i] = true;
      ASSERT_EQ(d[i], static_cast<f32>(want[r * c.n + n])) << name(c.in) << " " << r << " " << n;
    }
  }
  for (u32 i = 0; i < big; ++i) ASSERT_TRUE(inside[i] || d[i] == -1.0f) << "stray store at " << i;
}

TEST(LlvmFragment, ProductsInEveryLayout) {
  for (const CpuTarget& target : targets()) {
    check(target, {Scalar::F16, 8, 4, 2, Layout::RowMajor, Layout::ColMajor, Layout::RowMajor},
          false);
    // Without the instruction every product is a call: seconds of code generation.
    if (!target.has("fma")) continue;
    for (const Scalar s : {Scalar::F16, Scalar::BF16}) {
      for (u32 layouts = 0; layouts < 8; layouts += target.cpu == host().cpu ? 1 : 7) {
        const auto layout = [&](u32 bit) {
          return layouts >> bit & 1 ? Layout::ColMajor : Layout::RowMajor;
        };
        check(target, {s, 16, 16, 16, layout(0), layout(1), layout(2)}, false);
      }
    }
    check(target, {Scalar::F16, 16, 8, 16, Layout::ColMajor, Layout::RowMajor, Layout::ColMajor},
          true);
    check(target, {Scalar::BF16, 16, 16, 16, Layout::RowMajor, Layout::RowMajor, Layout::RowMajor},
          true);
  }
}

TEST(LlvmFragment, ElementwiseAndCasts) {
  std::vector<f32> in(64), out(64), rounded(64);
  for (u32 i = 0; i < 64; ++i) in[i] = 1.0f + static_cast<f32>(i) / 4096.0f;
  run(
      8, 1,
      [] {
        const Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32),
                     z = param_buffer(Scalar::F32);
        const Type type = fragment_type(FragUse::C, Scalar::F32, 8, 8);
        const Value c = frag_load(type, x, U32(0), U32(8), Layout::RowMajor);
        frag_store(y, U32(0), U32(8), Layout::RowMajor, frag_add(frag_mul(c, c), c));
        frag_store(z, U32(0), U32(8), Layout::RowMajor,
                   frag_cast(frag_cast(c, Scalar::F16), Scalar::F32));
      },
      in, out, rounded);
  for (u32 i = 0; i < 64; ++i) {
    volatile f32 square = in[i] * in[i];
    EXPECT_EQ(out[i], square + in[i]);
    EXPECT_EQ(rounded[i], f16_to_f32(f32_to_f16(in[i])));
  }
}

TEST(LlvmFragment, FillThatDiffersBetweenLanesIsRefused) {
  const Kernel k = traced(8, [] {
    const Buffer x = param_buffer(Scalar::F32);
    const Value f = frag_fill(fragment_type(FragUse::C, Scalar::F32, 8, 8), cast<F32>(lane()));
    frag_store(x, U32(0), U32(8), Layout::RowMajor, f);
  });
  EXPECT_THROW(compile_object(k, host(), "x"), Error);
}

}  // namespace
}  // namespace oa::codegen
