// Random numbers in kernels against their twins on the host.
#include "oa/kernel/philox.h"

#include <gtest/gtest.h>

#include <cmath>

#include "oa/codegen/llvm/compile.h"
#include "oa/core/random.h"
#include "oa/kernel/interpret.h"
#include "oa/kernel/verify.h"

namespace oa::kernel {
namespace {

// Four words of each of `n` counters (i, c1, c2, c3).
Kernel words_kernel() {
  return trace("philox", Target{}, 16, [] {
    Buffer out = param_buffer(Scalar::U32);
    U32 n = param_u32(), c0 = param_u32(), c1 = param_u32(), c2 = param_u32(), c3 = param_u32(),
        k0 = param_u32(), k1 = param_u32();
    For(lane(), n, U32(width()), [&](U32 i) {
      const PhiloxCounter w = philox4x32({c0 + i, c1, c2, c3}, {k0, k1});
      for (u32 j = 0; j < 4; ++j) out[i * 4 + j] = w[j];
    });
  });
}

// Two uniform and two normal values of each counter.
Kernel values_kernel() {
  return trace("philox_values", Target{}, 16, [] {
    Buffer out = param_buffer(Scalar::F32), in = param_buffer(Scalar::U32);
    U32 n = param_u32();
    For(lane(), n, U32(width()), [&](U32 i) {
      const U32 a(in[i * 2]), b(in[i * 2 + 1]);
      const auto [x, y] = normal_pair(a, b);
      out[i * 4] = unit_from_word(a);
      out[i * 4 + 1] = open_unit_from_word(a);
      out[i * 4 + 2] = x;
      out[i * 4 + 3] = y;
    });
  });
}

using Launch = void (*)(const Kernel&, std::vector<u64>, std::span<const BufferView>);

void interpreted(const Kernel& k, std::vector<u64> args, std::span<const BufferView> views) {
  verify(k);
  interpret(k, args, views, 1);
}

void compiled(const Kernel& k, std::vector<u64> args, std::span<const BufferView>) {
  static codegen::ObjectLoader loader;
  const auto code =
      loader.load(codegen::compile_object(k, codegen::CpuTarget::host(), "philox"), "philox");
  code->function()(args.data(), 0, 1, 1);
}

class Philox : public testing::TestWithParam<Launch> {};

TEST_P(Philox, GivesTheWordsOfTheHost) {
  const std::vector<std::pair<oa::PhiloxCounter, oa::PhiloxKey>> starts = {
      {{0, 0, 0, 0}, {0, 0}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}},
      {{0, 0, 0, 0}, philox_key(20260714)}};
  const Kernel k = words_kernel();
  for (const auto& [counter, key] : starts) {
    const u32 n = 37;
    std::vector<u32> out(4 * n);
    const auto address = reinterpret_cast<u64>(out.data());
    const std::vector<BufferView> views = {{address, out.data(), out.size() * 4}};
    GetParam()(k, {address, n, counter[0], counter[1], counter[2], counter[3], key[0], key[1]},
               views);
    for (u32 i = 0; i < n; ++i) {
      const oa::PhiloxCounter expected =
          oa::philox4x32({counter[0] + i, counter[1], counter[2], counter[3]}, key);
      for (u32 j = 0; j < 4; ++j) ASSERT_EQ(out[i * 4 + j], expected[j]) << i << " " << j;
    }
  }
}

TEST_P(Philox, GivesTheValuesOfTheHost) {
  std::vector<u32> in;
  for (u32 a : {0u, 255u, 256u, 0x80000000u, ~0u}) {
    for (u32 b : {0u, 0x3fffffffu, 0x40000000u, 0x80000000u, 0xc0000000u, ~0u}) {
      in.push_back(a);
      in.push_back(b);
    }
  }
  for (u32 i = 0; i < 500; ++i) {
    const oa::PhiloxCounter w = oa::philox4x32({i, 0, 0, 0}, {3, 4});
    in.insert(in.end(), {w[0], w[1]});
  }
  const auto n = static_cast<u32>(in.size() / 2);
  std::vector<f32> out(4 * n);
  const auto to = reinterpret_cast<u64>(out.data()), from = reinterpret_cast<u64>(in.data());
  const std::vector<BufferView> views = {{to, out.data(), out.size() * 4},
                                         {from, in.data(), in.size() * 4}};
  GetParam()(values_kernel(), {to, from, n}, views);
  for (u32 i = 0; i < n; ++i) {
    const auto [x, y] = oa::normal_pair(in[2 * i], in[2 * i + 1]);
    ASSERT_EQ(out[4 * i], oa::unit_from_word(in[2 * i]));
    ASSERT_EQ(out[4 * i + 1], oa::open_unit_from_word(in[2 * i]));
    ASSERT_NEAR(out[4 * i + 2], x, 1e-14 + std::abs(x) * 4e-7) << in[2 * i] << " " << in[2 * i + 1];
    ASSERT_NEAR(out[4 * i + 3], y, 1e-14 + std::abs(y) * 4e-7) << in[2 * i] << " " << in[2 * i + 1];
  }
}

INSTANTIATE_TEST_SUITE_P(On, Philox, testing::Values(interpreted, compiled),
                         [](const auto& launch) {
                           return launch.index == 0 ? "Interpreter" : "Cpu";
                         });

}  // namespace
}  // namespace oa::kernel
