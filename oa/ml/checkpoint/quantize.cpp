// Quantisation of weights on the host, one block at a time.
#include "oa/ml/checkpoint/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "oa/core/error.h"

namespace oa::ml {

namespace {

u64 blocks_of(u64 n) { return n / kQuantBlock + (n % kQuantBlock != 0); }
u64 block_bytes(Encoding encoding) { return encoding == Encoding::Q4 ? 16 : 32; }

}  // namespace

u64 quantized_bytes(u64 n, Encoding encoding) {
  return blocks_of(n) * (block_bytes(encoding) + sizeof(f32));
}

std::vector<u8> quantize(std::span<const u8> values, Encoding encoding) {
  OA_CHECK(encoding != Encoding::Dense && values.size() % 4 == 0 && !values.empty());
  const u64 n = values.size() / 4, blocks = blocks_of(n);
  const int limit = encoding == Encoding::Q4 ? 7 : 127;
  std::vector<u8> stored(quantized_bytes(n, encoding));
  u8* integers = stored.data();
  u8* scales = stored.data() + blocks * block_bytes(encoding);
  for (u64 b = 0; b < blocks; ++b) {
    f32 block[kQuantBlock] = {};
    const u64 first = b * kQuantBlock;
    std::memcpy(block, values.data() + 4 * first, 4 * std::min(kQuantBlock, n - first));
    f32 largest = 0;
    for (f32& v : block) {
      if (!std::isfinite(v)) v = 0;
      largest = std::max(largest, std::fabs(v));
    }
    f32 scale = largest / static_cast<f32>(limit);
    if (!(scale > 0)) scale = 1;
    std::memcpy(scales + 4 * b, &scale, 4);
    for (u64 l = 0; l < kQuantBlock; ++l) {
      // The bound comes first: with a subnormal scale the quotient may exceed any integer.
      const f32 bounded =
          std::clamp(block[l] / scale, static_cast<f32>(-limit), static_cast<f32>(limit));
      const int q = static_cast<int>(std::nearbyint(bounded));
      if (encoding == Encoding::Q8) {
        *integers++ = static_cast<u8>(q);
      } else if (l % 2 == 0) {
        *integers = static_cast<u8>(q + 7);
      } else {
        *integers++ |= static_cast<u8>((q + 7) << 4);
      }
    }
  }
  return stored;
}

std::vector<u8> dequantize(std::span<const u8> stored, u64 n, Encoding encoding) {
  OA_CHECK(encoding != Encoding::Dense && stored.size() == quantized_bytes(n, encoding));
  const u8* integers = stored.data();
  const u8* scales = stored.data() + blocks_of(n) * block_bytes(encoding);
  std::vector<u8> values(4 * n);
  for (u64 i = 0; i < n; ++i) {
    const int q = encoding == Encoding::Q8
                      ? static_cast<int>(static_cast<i8>(integers[i]))
                      : static_cast<int>((integers[i / 2] >> (i % 2 * 4)) & 15) - 7;
    f32 scale;
    std::memcpy(&scale, scales + 4 * (i / kQuantBlock), 4);
    const f32 value = static_cast<f32>(q) * scale;
    std::memcpy(values.data() + 4 * i, &value, 4);
  }
  return values;
}

}  // namespace oa::ml
