// Loads and stores: element types, strides, masks, vectors of components. Buffers end (or begin) at
// a page that must not be touched, so a masked lane or a wide load that strays ends the test.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "oa/core/dtype.h"
#include "oa/core/error.h"
#include "tests/codegen/gang.h"

namespace oa::codegen {
namespace {

using namespace oa::kernel;

// `bytes` that lie directly before (or behind) memory without access.
class Guarded {
 public:
  explicit Guarded(size_t bytes, bool at_end = true) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inner = (bytes + page - 1) / page * page;
    size_ = inner + 2 * page;
    map_ = static_cast<u8*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(map_, page, PROT_NONE);
    mprotect(map_ + page + inner, page, PROT_NONE);
    data_ = map_ + page + (at_end ? inner - bytes : 0);
  }
  ~Guarded() { munmap(map_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  u8* map_ = nullptr;
  u8* data_ = nullptr;
  size_t size_ = 0;
};

constexpr Scalar kElems[] = {Scalar::Bool, Scalar::U8,  Scalar::I32,  Scalar::U32, Scalar::I64,
                             Scalar::U64,  Scalar::F16, Scalar::BF16, Scalar::F32, Scalar::F64};

// Small numbers that every element type holds exactly.
void put(Scalar s, void* base, u32 i, i32 x) {
  switch (s) {
    case Scalar::Bool: static_cast<u8*>(base)[i] = x & 1; break;
    case Scalar::U8: static_cast<u8*>(base)[i] = static_cast<u8>(x); break;
    case Scalar::I32:
    case Scalar::U32: static_cast<i32*>(base)[i] = x; break;
    case Scalar::I64:
    case Scalar::U64: static_cast<i64*>(base)[i] = x; break;
    case Scalar::F16: static_cast<u16*>(base)[i] = f32_to_f16(static_cast<f32>(x)); break;
    case Scalar::BF16: static_cast<u16*>(base)[i] = f32_to_bf16(static_cast<f32>(x)); break;
    case Scalar::F32: static_cast<f32*>(base)[i] = static_cast<f32>(x); break;
    case Scalar::F64: static_cast<f64*>(base)[i] = x; break;
  }
}

i32 get(Scalar s, const void* base, u32 i) {
  switch (s) {
    case Scalar::Bool:
    case Scalar::U8: return static_cast<const u8*>(base)[i];
    case Scalar::I32:
    case Scalar::U32: return static_cast<const i32*>(base)[i];
    case Scalar::I64:
    case Scalar::U64: return static_cast<i32>(static_cast<const i64*>(base)[i]);
    case Scalar::F16: return static_cast<i32>(f16_to_f32(static_cast<const u16*>(base)[i]));
    case Scalar::BF16: return static_cast<i32>(bf16_to_f32(static_cast<const u16*>(base)[i]));
    case Scalar::F32: return static_cast<i32>(static_cast<const f32*>(base)[i]);
    case Scalar::F64: return static_cast<i32>(static_cast<const f64*>(base)[i]);
  }
  return 0;
}

i32 sample(Scalar s, u32 i) {
  return s == Scalar::Bool ? (i * 5 / 3) & 1 : static_cast<i32>(i * 7 % 113);
}

TEST(LlvmMemory, EveryElementTypeWithEveryTail) {
  for (const CpuTarget& target : targets()) {
    for (const u32 width : {1u, 16u, 64u}) {
      for (const Scalar s : kElems) {
        if (target.cpu != host().cpu && width != 16) continue;
        const Kernel k = traced(width, [&] {
          const Buffer x = param_buffer(s), y = param_buffer(s);
          const U32 n = param_u32();
          For(lane(), n, U32(width), [&](U32 i) { y[i] = Value(x[i]); });
        });
        const auto code = loader().load(compile_object(k, target, "copy"), "copy");
        for (u32 n = 0; n <= 40; ++n) {
          const Guarded in(n * size_bytes(s), n % 2), out(n * size_bytes(s), n % 3);
          for (u32 i = 0; i < n; ++i)
            put(s, in.as<void>(), i, sample(s, i)), put(s, out.as<void>(), i, 1);
          const u64 params[] = {word(in.as<void>()), word(out.as<void>()), n};
          code->function()(params, 0, 1, 1);
          for (u32 i = 0; i < n; ++i) {
            ASSERT_EQ(get(s, out.as<void>(), i), sample(s, i)) << name(s) << " " << n << " " << i;
          }
        }
      }
    }
  }
}

TEST(LlvmMemory, StridesOfAllKinds) {
  constexpr u32 kLength = 23;
  for (const CpuTarget& target : targets()) {
    for (const u32 width : {2u, 16u}) {
      if (target.cpu != host().cpu && width != 16) continue;
      for (const Scalar s : {Scalar::U8, Scalar::F16, Scalar::F32, Scalar::F64}) {
        for (const i32 stride : {-3, -1, 2, 3, 4, 5}) {
          const u32 size = kLength * static_cast<u32>(std::abs(stride)) - (std::abs(stride) - 1);
          const Kernel k = traced(width, [&] {
            const Buffer x = param_buffer(s), y = param_buffer(s);
            const I32 n =
                param_u32().type == Type{Scalar::U32} ? I32(static_cast<i32>(kLength)) : I32(0);
            const auto place = [&](const I32& i) {
              return stride > 0 ? i * I32(stride)
                                : I32(static_cast<i32>(size - 1)) + i * I32(stride);
            };
            For(cast<I32>(lane()), n, I32(static_cast<i32>(width)),
                [&](const Value& i) { y[place(I32(i))] = Value(x[place(I32(i))]); });
          });
          const Guarded in(size * size_bytes(s), stride % 2), out(size * size_bytes(s), stride > 0);
          for (u32 i = 0; i < size; ++i)
            put(s, in.as<void>(), i, sample(s, i)), put(s, out.as<void>(), i, 1);
          run_on(target, k, 1, {word(in.as<void>()), word(out.as<void>()), 0});
          for (u32 i = 0; i < size; ++i) {
            ASSERT_EQ(get(s, out.as<void>(), i),
                      i % static_cast<u32>(std::abs(stride)) ? 1 : sample(s, i))
                << name(s) << " stride " << stride << " width " << width << " element " << i;
          }
        }
      }
    }
  }
}

TEST(LlvmMemory, GatherAndScatterUnderMasks) {
  constexpr u32 kCount = 37;
  std::vector<u32> order(kCount);
  for (u32 i = 0; i < kCount; ++i) order[i] = i % 5 == 2 ? 0xfffffff0u : i * 11 % kCount;
  for (const CpuTarget& target : targets()) {
    for (const u32 width : {16u}) {
      for (const Scalar s : kElems) {
        const Kernel k = traced(width, [&] {
          const Buffer x = param_buffer(s), y = param_buffer(s), at = param_buffer(Scalar::U32);
          For(lane(), U32(kCount), U32(width), [&](U32 i) {
            const U32 j(at[i]);
            If(j < U32(kCount), [&] { y[j] = Value(x[j]); });
          });
        });
        const Guarded in(kCount * size_bytes(s)), out(kCount * size_bytes(s));
        std::vector<bool> hit(kCount);
        for (const u32 j : order) {
          if (j < kCount) hit[j] = true;
        }
        for (u32 i = 0; i < kCount; ++i)
          put(s, in.as<void>(), i, sample(s, i)), put(s, out.as<void>(), i, 1);
        run_on(target, k, 1, {word(in.as<void>()), word(out.as<void>()), word(order)});
        for (u32 i = 0; i < kCount; ++i) {
          ASSERT_EQ(get(s, out.as<void>(), i), hit[i] ? sample(s, i) : 1) << name(s) << " " << i;
        }
      }
    }
  }
}

// Lane 0 of these accesses lies before the buffer and is switched off.
TEST(LlvmMemory, LanesBelowZeroAreHarmless) {
  constexpr u32 kCount = 40;
  using Index = std::function<Value(U32)>;
  const std::vector<std::pair<const char*, Index>> forms = {
      {"plain", [](U32 i) -> Value { return i - 2u; }},
      {"constant that wraps", [](U32 i) -> Value { return i + U32(0xfffffffeu); }},
      {"signed", [](U32 i) -> Value { return cast<I32>(i) - 2; }},
      {"signed and back", [](U32 i) -> Value { return cast<U32>(cast<I32>(i) - 2); }},
      {"wide", [](U32 i) -> Value { return cast<U64>(i - 2u); }},
      {"wide signed", [](U32 i) -> Value { return cast<I64>(cast<I32>(i) - 2); }},
      {"variable",
       [](U32 i) -> Value {
         const Var<U32> v(i - 2u);
         return *v;
       }},
      {"negative variable",
       [](U32 i) -> Value {
         const Var<U32> v(U32(0) - 2u);
         return i + *v;
       }},
      {"select", [](U32 i) -> Value { return i - select(group() == U32(0), U32(2), U32(3)); }},
      {"doubled", [](U32 i) -> Value { return (i * 2u - 4u) / 2u; }},
  };
  for (const CpuTarget& target : targets()) {
    for (const auto& [what, index] : forms) {
      const Kernel k = traced(16, [&] {
        const Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
        For(lane(), U32(kCount), U32(16), [&](U32 i) {
          const Value at = index(i);
          y[i] = F32(-1.0f);
          If(i >= U32(2), [&] { y[i] = F32(x[at]); });
          const Value again = index(i);
          If(i >= U32(2), [&] { If(i != U32(7), [&] { y[again] = F32(y[again]) + 1000.0f; }); });
        });
      });
      const Guarded in((kCount - 2) * 4, false), out(kCount * 4);
      for (u32 i = 0; i < kCount - 2; ++i) in.as<f32>()[i] = static_cast<f32>(i);
      run_on(target, k, 1, {word(in.as<f32>()), word(out.as<f32>())});
      for (u32 i = 0; i < kCount; ++i) {
        const f32 first = i < 2 ? -1.0f : static_cast<f32>(i - 2);
        const bool added = i + 2 < kCount && i + 2 != 7;
        // A later gang overwrites what an earlier one added behind its end, and the other way
        // round.
        const f32 got = out.as<f32>()[i];
        ASSERT_TRUE(got == first + (added ? 1000.0f : 0.0f)) << what << " " << i << " " << got;
      }
    }
  }
}

TEST(LlvmMemory, ComponentVectors) {
  for (const CpuTarget& target : targets()) {
    for (const u32 width : {1u, 16u}) {
      for (const u32 lanes : {2u, 4u}) {
        for (const Scalar s : {Scalar::U8, Scalar::BF16, Scalar::F32, Scalar::I64}) {
          const Kernel k = traced(width, [&] {
            const Buffer x = param_buffer(s), y = param_buffer(s);
            const U32 n = param_u32();
            const Shared cells(s, 64 * lanes);
            For(lane(), n, U32(width), [&](U32 i) {
              const Value v = x.load(i * lanes, lanes);
              std::vector<Value> turned;
              for (u32 c = 0; c < lanes; ++c) turned.push_back(extract(v, lanes - 1 - c));
              cells.store(lane() * lanes, vec(turned));
              y.store((n - 1u - i) * lanes, cells.load(lane() * lanes, lanes));
            });
          });
          const auto code = loader().load(compile_object(k, target, "vec"), "vec");
          for (const u32 n : {1u, 3u, 16u, 37u}) {
            const size_t bytes = n * lanes * size_bytes(s);
            const Guarded in(bytes, n % 2), out(bytes, lanes % 4);
            for (u32 i = 0; i < n * lanes; ++i) put(s, in.as<void>(), i, sample(s, i));
            const u64 params[] = {word(in.as<void>()), word(out.as<void>()), n};
            code->function()(params, 0, 1, 1);
            for (u32 i = 0; i < n; ++i) {
              for (u32 c = 0; c < lanes; ++c) {
                ASSERT_EQ(get(s, out.as<void>(), (n - 1 - i) * lanes + c),
                          sample(s, i * lanes + lanes - 1 - c))
                    << name(s) << " " << width << " " << lanes << " " << n << " " << i;
              }
            }
          }
        }
      }
    }
  }
}

// Every lane loads four neighbours from a row of its own: nothing beside the rows is touched.
TEST(LlvmMemory, ComponentVectorsOfRows) {
  for (const CpuTarget& target : targets()) {
    for (const u32 width : {1u, 2u, 4u, 8u, 16u, 32u}) {
      for (const i32 stride : {-8, 4, 12, 20, 64}) {
        for (const Scalar s : {Scalar::U8, Scalar::F16, Scalar::F32, Scalar::I64}) {
          const u32 far = static_cast<u32>(std::abs(stride));
          const Kernel k = traced(width, [&] {
            const Buffer x = param_buffer(s), y = param_buffer(s);
            const U32 row = lane() * U32(far);
            const Value v = x.load(stride < 0 ? U32((width - 1) * far) - row : row, 4);
            for (u32 c = 0; c < 4; ++c) y.store(U32(c * width) + lane(), extract(v, c));
          });
          const u32 count = (width - 1) * far + 4;
          for (const bool at_end : {false, true}) {
            const Guarded in(count * size_bytes(s), at_end), out(4 * width * size_bytes(s));
            for (u32 i = 0; i < count; ++i) put(s, in.as<void>(), i, sample(s, i));
            run_on(target, k, 1, {word(in.as<void>()), word(out.as<void>())});
            for (u32 l = 0; l < width; ++l) {
              const u32 first = (stride < 0 ? width - 1 - l : l) * far;
              for (u32 c = 0; c < 4; ++c) {
                ASSERT_EQ(get(s, out.as<void>(), c * width + l), sample(s, first + c))
                    << name(s) << " " << width << " " << stride << " " << l << " " << c;
              }
            }
          }
        }
      }
    }
  }
}

// Every lane stores four neighbours into a row of its own, and nothing between the rows.
TEST(LlvmMemory, StoresOfComponentVectorsIntoRows) {
  for (const CpuTarget& target : targets()) {
    for (const u32 width : {1u, 2u, 4u, 8u, 16u, 32u}) {
      for (const u32 stride : {8u, 12u, 20u, 64u}) {
        for (const Scalar s : {Scalar::U8, Scalar::F16, Scalar::F32, Scalar::I64}) {
          const Kernel k = traced(width, [&] {
            const Buffer x = param_buffer(s), y = param_buffer(s);
            std::vector<Value> v;
            for (u32 c = 0; c < 4; ++c) v.push_back(x.load(U32(c * width) + lane()));
            y.store(lane() * U32(stride), vec(v));
          });
          const u32 count = (width - 1) * stride + 4;
          const Guarded in(4 * width * size_bytes(s)), out(count * size_bytes(s), true);
          for (u32 i = 0; i < 4 * width; ++i) put(s, in.as<void>(), i, sample(s, i));
          for (u32 i = 0; i < count; ++i) put(s, out.as<void>(), i, sample(s, 3));
          run_on(target, k, 1, {word(in.as<void>()), word(out.as<void>())});
          for (u32 i = 0; i < count; ++i) {
            const u32 l = i / stride, c = i % stride;
            ASSERT_EQ(get(s, out.as<void>(), i), sample(s, c < 4 ? c * width + l : 3))
                << name(s) << " " << width << " " << stride << " " << i;
          }
        }
      }
    }
  }
}

TEST(LlvmMemory, ContiguousComponentVectorsUnderMasks) {
  for (const CpuTarget& target : targets()) {
    for (const u32 lanes : {2u, 4u}) {
      const Kernel k = traced(16, [&] {
        const Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
        const U32 n = param_u32();
        For(lane(), n, U32(16), [&](U32 i) { y.store(i * lanes, x.load(i * lanes, lanes)); });
      });
      const auto code = loader().load(compile_object(k, target, "vec"), "vec");
      for (u32 n = 0; n < 40; ++n) {
        const Guarded in(n * lanes * 4, n % 2), out(n * lanes * 4, n % 3);
        for (u32 i = 0; i < n * lanes; ++i) in.as<f32>()[i] = static_cast<f32>(i);
        const u64 params[] = {word(in.as<f32>()), word(out.as<f32>()), n};
        code->function()(params, 0, 1, 1);
        for (u32 i = 0; i < n * lanes; ++i) ASSERT_EQ(out.as<f32>()[i], static_cast<f32>(i));
      }
    }
  }
}

TEST(LlvmMemory, HalvesRoundToNearestEvenAndKeepNaN) {
  std::vector<f32> in;
  for (u32 exponent = 0; exponent < 256; ++exponent) {
    for (const u32 mantissa :
         {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x3001u, 0x7fffu, 0x8000u, 0x8001u,
          0x17fffu, 0x18000u, 0x18001u, 0x7fe000u, 0x7fefffu, 0x7ff000u, 0x7fffffu}) {
      for (const u32 sign : {0u, 1u})
        in.push_back(std::bit_cast<f32>(sign << 31 | exponent << 23 | mantissa));
    }
  }
  const u32 n = static_cast<u32>(in.size());
  for (const CpuTarget& target : targets()) {
    for (const Scalar s : {Scalar::F16, Scalar::BF16}) {
      for (const u32 width : {1u, 16u}) {
        std::vector<u16> half(n);
        std::vector<f32> back(n);
        const Kernel k = traced(width, [&] {
          const Buffer x = param_buffer(Scalar::F32), h = param_buffer(s),
                       y = param_buffer(Scalar::F32);
          For(lane(), U32(n), U32(width), [&](U32 i) { h[i] = F32(x[i]); });
          For(lane(), U32(n), U32(width), [&](U32 i) { y[i] = F32(h[i]); });
        });
        run_on(target, k, 1, {word(in), word(half), word(back)});
        for (u32 i = 0; i < n; ++i) {
          const u16 want = s == Scalar::F16 ? f32_to_f16(in[i]) : f32_to_bf16(in[i]);
          if (std::isnan(in[i])) {
            ASSERT_TRUE(std::isnan(s == Scalar::F16 ? f16_to_f32(half[i]) : bf16_to_f32(half[i])))
                << i;
            ASSERT_TRUE(std::isnan(back[i]));
          } else {
            ASSERT_EQ(half[i], want)
                << name(s) << " " << in[i] << " " << target.cpu << " " << width;
            ASSERT_EQ(back[i], s == Scalar::F16 ? f16_to_f32(want) : bf16_to_f32(want)) << in[i];
          }
        }
      }
    }
  }
}

TEST(LlvmMemory, AnyNonZeroByteIsTrue) {
  std::vector<u8> in(16, 0), out(16, 9);
  in[3] = 1, in[5] = 2, in[7] = 255;
  run(
      16, 1,
      [] {
        const Buffer x = param_buffer(Scalar::Bool), y = param_buffer(Scalar::Bool);
        y[lane()] = Bool(x[lane()]);
      },
      in, out);
  for (u32 i = 0; i < 16; ++i) EXPECT_EQ(out[i], in[i] != 0);
}

TEST(LlvmMemory, AddressesFromMemoryUniformAndVarying) {
  std::vector<f32> a(8), b(8), out(8);
  std::iota(a.begin(), a.end(), 0.0f);
  std::iota(b.begin(), b.end(), 100.0f);
  std::vector<u64> table{word(a), word(b)};
  for (const CpuTarget& target : targets()) {
    const Kernel k = traced(8, [] {
      const Buffer t = param_buffer(Scalar::U64), y = param_buffer(Scalar::F32);
      const Buffer second(Scalar::F32, U64(t[1]));
      const Buffer own(Scalar::F32, U64(t[lane() % 2u]));
      y[lane()] = F32(second[lane()]) + F32(own[lane()]);
      own[lane()] = F32(-1.0f);
    });
    std::iota(a.begin(), a.end(), 0.0f);
    std::iota(b.begin(), b.end(), 100.0f);
    run_on(target, k, 1, {word(table), word(out)});
    for (u32 i = 0; i < 8; ++i) {
      const f32 x = static_cast<f32>(i);
      EXPECT_EQ(out[i], 100 + x + (i % 2 ? 100 + x : x));
      EXPECT_EQ(a[i], i % 2 ? x : -1.0f);
      EXPECT_EQ(b[i], i % 2 ? -1.0f : 100 + x);
    }
  }
}

TEST(LlvmMemory, SharedMemoryBeyondTheLimitIsRefused) {
  const auto kernel_with = [](u32 count) {
    return traced(8, [&] {
      const Shared s(Scalar::F32, count);
      const Buffer y = param_buffer(Scalar::F32);
      s[lane()] = F32(1.0f);
      y[lane()] = F32(s[lane()]);
    });
  };
  EXPECT_NO_THROW(compile_object(kernel_with(64 * 1024), host(), "x"));
  try {
    compile_object(kernel_with(64 * 1024 + 1), host(), "x");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::InvalidArgument);
    EXPECT_STREQ(
        e.what(),
        "codegen: workgroup memory of test in bytes, got at least 262208, expected at most 262144");
  }
}

}  // namespace
}  // namespace oa::codegen
