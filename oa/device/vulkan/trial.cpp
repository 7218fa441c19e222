// The kernels of the trials and their expected results, computed here by the host.
#include "oa/device/vulkan/trial.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "oa/core/dtype.h"
#include "oa/core/error.h"
#include "oa/kernel/lang.h"

namespace oa::device::vulkan {
namespace {

using namespace oa::kernel;

constexpr u8 kMaxAttempts = 3;  // at trials that take the process down
constexpr u32 kVersion = 3;     // raise it when a trial or the lowering of its instructions changes
constexpr const char* kCacheKind = "vulkan-trial";
constexpr u32 kNumbers = 2048;
constexpr u32 kSide = 16;  // of a fragment

template <class T>
std::vector<u8> bytes_of(const std::vector<T>& values) {
  std::vector<u8> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A float with a random significand and an exponent within +-20, far from overflow and denormals.
template <class T>
T number(std::mt19937_64& random) {
  const T significand = T(1) + static_cast<T>(random() >> 11) * static_cast<T>(0x1p-53);
  const int exponent = static_cast<int>(random() % 41) - 20;
  return std::ldexp(random() % 2 ? significand : -significand, exponent);
}

template <class T>
std::vector<T> numbers(u64 seed) {
  std::mt19937_64 random(seed);
  std::vector<T> list(kNumbers);
  for (T& x : list) x = number<T>(random);
  return list;
}

u32 lanes_for_numbers(const Target& target) { return std::min(target.width, kNumbers); }

template <class T>
Trial make_fma_trial(const Target& target, Scalar scalar) {
  const std::vector<T> a = numbers<T>(1), b = numbers<T>(2);
  std::vector<T> c = numbers<T>(3), result(kNumbers);
  for (u32 i = 0; i < kNumbers; ++i) {
    if (i % 2 == 0)
      c[i] = -(a[i] * b[i]);  // leaves the error of the product, or 0 if rounded twice
    result[i] = std::fma(a[i], b[i], c[i]);
  }
  Trial trial;
  trial.kernel = trace("trial fma", target, lanes_for_numbers(target), [&] {
    Buffer x = param_buffer(scalar), y = param_buffer(scalar), z = param_buffer(scalar);
    Buffer out = param_buffer(scalar);
    For(lane(), U32(kNumbers), U32(width()),
        [&](U32 i) { out[i] = fma(x[i].load(), y[i].load(), z[i].load()); });
  });
  trial.blocks = {{bytes_of(a), bytes_of(a)},
                  {bytes_of(b), bytes_of(b)},
                  {bytes_of(c), bytes_of(c)},
                  {bytes_of(std::vector<T>(kNumbers)), bytes_of(result)}};
  return trial;
}

template <class T>
Trial make_division_trial(const Target& target, Scalar scalar) {
  const std::vector<T> a = numbers<T>(4), b = numbers<T>(5);
  std::vector<T> quotient(kNumbers), root(kNumbers);
  for (u32 i = 0; i < kNumbers; ++i) {
    quotient[i] = a[i] / b[i];
    root[i] = std::sqrt(std::abs(a[i]));
  }
  Trial trial;
  trial.kernel = trace("trial division", target, lanes_for_numbers(target), [&] {
    Buffer x = param_buffer(scalar), y = param_buffer(scalar);
    Buffer divided = param_buffer(scalar), rooted = param_buffer(scalar);
    For(lane(), U32(kNumbers), U32(width()), [&](U32 i) {
      divided[i] = x[i].load() / y[i].load();
      rooted[i] = sqrt(abs(x[i].load()));
    });
  });
  const std::vector<u8> zeros = bytes_of(std::vector<T>(kNumbers));
  trial.blocks = {{bytes_of(a), bytes_of(a)},
                  {bytes_of(b), bytes_of(b)},
                  {zeros, bytes_of(quotient)},
                  {zeros, bytes_of(root)}};
  return trial;
}

// Integers of at most `bits` bits, times `unit`: products of two such lists of 10 bits each, and
// sums of 16 of them, are exact in f32 in any order.
std::vector<f32> integers(u64 seed, u32 bits, f32 unit) {
  std::mt19937_64 random(seed);
  const i64 most = (i64{1} << bits) - 1;
  std::vector<f32> list(kSide * kSide);
  for (f32& x : list) {
    const i64 integer = static_cast<i64>(random() % static_cast<u64>(2 * most + 1)) - most;
    x = static_cast<f32>(integer) * unit;
  }
  return list;
}

std::vector<u16> narrow(const std::vector<f32>& values, Scalar scalar) {
  std::vector<u16> bits;
  for (f32 x : values) bits.push_back(scalar == Scalar::F16 ? f32_to_f16(x) : f32_to_bf16(x));
  return bits;
}

Hash128 key_of(const Physical& p) {
  Hasher h;
  h.add(kVersion);
  h.bytes(p.cache_uuid.data(), p.cache_uuid.size());
  h.text(p.info.name);
  h.text(p.info.driver);
  return h.finish();
}

// What is on disk: the trust, and how often the trials of fragments were begun and never ended,
// because the driver took the process down or somebody else did.
struct Entry {
  Trust trust;
  u8 unfinished = 0;
};

std::vector<u8> encode(const Entry& e) {
  return {e.trust.fused_fma,      e.trust.exact_division,      e.trust.fragments,
          e.trust.fragments_bf16, e.trust.fragments_subnormal, e.unfinished};
}

std::optional<Entry> decode(const std::optional<std::vector<u8>>& bytes) {
  if (!bytes || bytes->size() != 6) return std::nullopt;
  const std::vector<u8>& b = *bytes;
  return Entry{.trust = {b[0] != 0, b[1] != 0, b[2] != 0, b[3] != 0, b[4] != 0},
               .unfinished = b[5]};
}

}  // namespace

Trial fma_trial(const Target& target, Scalar scalar) {
  return scalar == Scalar::F64 ? make_fma_trial<f64>(target, scalar)
                               : make_fma_trial<f32>(target, scalar);
}

Trial division_trial(const Target& target, Scalar scalar) {
  return scalar == Scalar::F64 ? make_division_trial<f64>(target, scalar)
                               : make_division_trial<f32>(target, scalar);
}

Trial fragment_trial(const Target& target, Scalar scalar, FragmentNumbers numbers) {
  const bool tiny = numbers == FragmentNumbers::Subnormal;
  const u32 bits = scalar == Scalar::BF16 ? 8 : 10;  // of 8 and 11: sums must fit 24
  const f32 unit = tiny ? 0x1p-24f : 1.0f;
  const std::vector<f32> a = integers(6, bits, unit), b = integers(7, bits, 1.0f);
  const std::vector<f32> c = integers(8, 20, unit);
  // For each layout pair, A and B as stored in memory, plus C; then the same through workgroup
  // memory. Column-major means that the matrix is the transpose of what is stored.
  const auto at = [](const std::vector<f32>& m, bool columns, u32 row, u32 col) {
    return columns ? m[col * kSide + row] : m[row * kSide + col];
  };
  std::vector<f32> result;
  for (u32 variant = 0; variant < 8; ++variant) {
    const bool a_columns = variant & 1, b_columns = variant & 2;
    std::vector<f32> product(kSide * kSide);
    for (u32 row = 0; row < kSide; ++row) {
      for (u32 col = 0; col < kSide; ++col) {
        f64 sum = c[row * kSide + col];
        for (u32 k = 0; k < kSide; ++k) {
          sum += f64{at(a, a_columns, row, k)} * at(b, b_columns, k, col);
        }
        product[row * kSide + col] = static_cast<f32>(sum);
      }
    }
    result.insert(result.end(), product.begin(), product.end());
  }

  Trial trial;
  trial.kernel = trace("trial fragments", target, target.subgroup, [&] {
    Buffer from_a = param_buffer(scalar), from_b = param_buffer(scalar);
    Buffer from_c = param_buffer(Scalar::F32), out = param_buffer(Scalar::F32);
    const Type type_a = fragment_type(FragUse::A, scalar, kSide, kSide);
    const Type type_b = fragment_type(FragUse::B, scalar, kSide, kSide);
    const Type type_c = fragment_type(FragUse::C, Scalar::F32, kSide, kSide);
    Shared tile_a(scalar, kSide * kSide), tile_b(scalar, kSide * kSide);
    For(lane(), U32(kSide * kSide), U32(width()), [&](U32 i) {
      tile_a[i] = Value(from_a[i]);
      tile_b[i] = Value(from_b[i]);
    });
    barrier();
    const U32 zero(0), side(kSide);
    const Value accumulator = frag_load(type_c, from_c, zero, side, Layout::RowMajor);
    for (u32 variant = 0; variant < 8; ++variant) {
      const Layout a_layout = variant & 1 ? Layout::ColMajor : Layout::RowMajor;
      const Layout b_layout = variant & 2 ? Layout::ColMajor : Layout::RowMajor;
      const bool shared = variant & 4;
      const Value fa = shared ? frag_load(type_a, tile_a, zero, side, a_layout)
                              : frag_load(type_a, from_a, zero, side, a_layout);
      const Value fb = shared ? frag_load(type_b, tile_b, zero, side, b_layout)
                              : frag_load(type_b, from_b, zero, side, b_layout);
      frag_store(out, U32(variant * kSide * kSide), side, Layout::RowMajor,
                 frag_mul_add(fa, fb, accumulator));
    }
  });
  const std::vector<u8> a_bytes = bytes_of(narrow(a, scalar));
  const std::vector<u8> b_bytes = bytes_of(narrow(b, scalar));
  trial.blocks = {{a_bytes, a_bytes},
                  {b_bytes, b_bytes},
                  {bytes_of(c), bytes_of(c)},
                  {bytes_of(std::vector<f32>(result.size())), bytes_of(result)}};
  return trial;
}

bool passes(Device& device, const CompileOne& compile, const Trial& trial) {
  std::shared_ptr<Executable> kernel;
  try {
    kernel = compile(trial.kernel);
  } catch (const Error& e) {
    return false;  // refused by the driver or for a missing capability; a lost device fails below
  }
  CommandList list;
  std::vector<Memory> memory;
  for (const Trial::Block& block : trial.blocks) {
    memory.push_back(device.allocate(block.before.size()));
    device.write(memory.back(), 0, block.before.data(), block.before.size());
    list.args.push_back(memory.back().address);
  }
  list.dispatches.push_back(
      {.kernel = kernel.get(), .groups = 1, .arg_count = static_cast<u32>(list.args.size())});
  device.submit(list);
  bool equal = true;
  for (size_t i = 0; i < memory.size(); ++i) {
    std::vector<u8> after(trial.blocks[i].after.size());
    device.read(memory[i], 0, after.data(), after.size());
    equal = equal && after == trial.blocks[i].after;
    device.release(memory[i]);
  }
  return equal;
}

Trust find_trust(Device& device, const Physical& physical, codegen::CodeCache& disk,
                 const CompileOne& compile) {
  const Hash128 key = key_of(physical);
  Entry entry;
  if (const auto stored = decode(disk.get(key, kCacheKind))) {
    entry = *stored;
    if (entry.unfinished == 0 || entry.unfinished >= kMaxAttempts) return entry.trust;
  }
  const Target& target = physical.target;
  const auto good = [&](const Trial& trial) { return passes(device, compile, trial); };
  Trust& trust = entry.trust;
  trust.fused_fma =
      good(fma_trial(target, Scalar::F32)) && (!target.f64 || good(fma_trial(target, Scalar::F64)));
  trust.exact_division = good(division_trial(target, Scalar::F32)) &&
                         (!target.f64 || good(division_trial(target, Scalar::F64)));
  if (target.fragments) {
    ++entry.unfinished;
    disk.put(key, kCacheKind, encode(entry));
    try {
      trust.fragments = good(fragment_trial(target, Scalar::F16));
      trust.fragments_bf16 = target.fragments_bf16 && good(fragment_trial(target, Scalar::BF16));
      trust.fragments_subnormal =
          trust.fragments && good(fragment_trial(target, Scalar::F16, FragmentNumbers::Subnormal));
    } catch (const Error&) {  // lost: the next device is opened without fragments
      entry.unfinished = kMaxAttempts;
      disk.put(key, kCacheKind, encode(entry));
      throw;
    }
    entry.unfinished = 0;
  }
  disk.put(key, kCacheKind, encode(entry));
  return trust;
}

}  // namespace oa::device::vulkan
