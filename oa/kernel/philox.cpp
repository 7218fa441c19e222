#include "oa/kernel/philox.h"

#include "oa/kernel/math.h"

namespace oa::kernel {

PhiloxCounter philox4x32(const PhiloxCounter& counter, const PhiloxKey& key) {
  U32 x = counter[0], y = counter[1], z = counter[2], w = counter[3];
  U32 k0 = key[0], k1 = key[1];
  const U32 multiplier_x = 0xd2511f53u, multiplier_z = 0xcd9e8d57u;
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      k0 = k0 + 0x9e3779b9u;
      k1 = k1 + 0xbb67ae85u;
    }
    const U32 a_high = mul_hi(multiplier_x, x), a_low = multiplier_x * x;
    const U32 b_high = mul_hi(multiplier_z, z), b_low = multiplier_z * z;
    x = b_high ^ y ^ k0;
    y = b_low;
    z = a_high ^ w ^ k1;
    w = a_low;
  }
  return {x, y, z, w};
}

F32 unit_from_word(const U32& word) { return cast<F32>(word >> 8) * 0x1p-24f; }
F32 open_unit_from_word(const U32& word) { return cast<F32>((word >> 8) + 1) * 0x1p-24f; }

std::pair<F32, F32> normal_pair(const U32& first, const U32& second) {
  const F32 radius = sqrt(log(open_unit_from_word(first)) * -2);
  const auto [sine, cosine] = sin_cos_turns(unit_from_word(second));
  return {radius * cosine, radius * sine};
}

}  // namespace oa::kernel
