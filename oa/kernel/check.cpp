#include "oa/kernel/check.h"

#include <cmath>
#include <cstring>

#include "oa/core/dtype.h"
#include "oa/core/error.h"
#include "oa/kernel/hash.h"
#include "oa/kernel/parse.h"
#include "oa/kernel/print.h"
#include "oa/kernel/simplify.h"
#include "oa/kernel/verify.h"

namespace oa::kernel {
namespace {

// Copies of buffers, at the same addresses for the kernel.
struct Copy {
  explicit Copy(std::span<const BufferView> from) : views(from.begin(), from.end()) {
    data.reserve(from.size()), flags.reserve(from.size());
    for (BufferView& v : views) {
      const auto* bytes = static_cast<const std::byte*>(v.data);
      v.data = data.emplace_back(bytes, bytes + v.bytes).data();
      if (v.initialised) v.initialised = &flags.emplace_back(*v.initialised);
    }
  }

  std::vector<BufferView> views;
  std::vector<std::vector<std::byte>> data;
  std::vector<std::vector<bool>> flags;
};

template <class T>
T at(const void* data, u64 byte) {
  T x;
  std::memcpy(&x, static_cast<const std::byte*>(data) + byte, sizeof x);
  return x;
}

// Whether the elements around a differing byte are both NaN of some width.
bool both_nan(const void* a, const void* b, u64 byte, u64 bytes) {
  const auto fits = [&](u64 size) { return byte / size * size + size <= bytes; };
  const auto nan = [&]<class T>(T) {
    return fits(sizeof(T)) && std::isnan(at<T>(a, byte / sizeof(T) * sizeof(T))) &&
           std::isnan(at<T>(b, byte / sizeof(T) * sizeof(T)));
  };
  const auto half = [&](f32 (*convert)(u16)) {
    return fits(2) && std::isnan(convert(at<u16>(a, byte / 2 * 2))) &&
           std::isnan(convert(at<u16>(b, byte / 2 * 2)));
  };
  return nan(f32{}) || nan(f64{}) || half(f16_to_f32) || half(bf16_to_f32);
}

}  // namespace

void run_checked(const Kernel& kernel, std::span<const u64> args,
                 std::span<const BufferView> buffers, u32 groups, const InterpretOptions& options) {
  verify(kernel);
  if (hash(parse(print(kernel))) != hash(kernel)) {
    fail(ErrorKind::Internal, "kernel::check", "{}: its text does not parse back", kernel.name);
  }
  const Copy copy(buffers);
  interpret(kernel, args, buffers, groups, options);

  const Kernel simple = simplify(kernel);
  verify(simple);
  interpret(simple, args, copy.views, groups, options);
  for (size_t b = 0; b < buffers.size(); ++b) {
    const void *expected = buffers[b].data, *got = copy.views[b].data;
    for (u64 byte = 0; byte < buffers[b].bytes; ++byte) {
      if (at<u8>(expected, byte) == at<u8>(got, byte)) continue;
      if (both_nan(expected, got, byte, buffers[b].bytes)) continue;
      fail(ErrorKind::Internal, "kernel::check",
           "{}: the simplified kernel differs at byte {} of buffer {}\n{}\n{}", kernel.name, byte,
           b, print(kernel), print(simple));
    }
  }
}

}  // namespace oa::kernel
