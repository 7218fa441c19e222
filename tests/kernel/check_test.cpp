// run_checked: accepts what is right, leaves the results, and reports what the parts find.
#include "oa/kernel/check.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "oa/core/error.h"
#include "oa/kernel/lang.h"

namespace oa::kernel {
namespace {

Kernel scale() {
  return trace("scale", Target{}, 4, [] {
    Buffer x = param_buffer(Scalar::F32), y = param_buffer(Scalar::F32);
    U32 n = param_u32();
    For(group() * width() + lane(), n, group_count() * width(),
        [&](U32 i) { y[i] = F32(x[i]) * 1.0f; });
  });
}

TEST(RunChecked, LeavesTheResults) {
  std::vector<f32> x = {1, -0.0f, std::numeric_limits<f32>::quiet_NaN(), -5, 7}, y(5);
  // A NaN with a payload, which the multiplication by one may keep or not.
  x[2] = std::bit_cast<f32>(0xffc01234u);
  std::vector<bool> written;
  const BufferView views[] = {buffer_view(x), output_view(y, written)};
  const u64 args[] = {views[0].address, views[1].address, 5};
  run_checked(scale(), args, views, 2);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[3], -5.0f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(written, std::vector<bool>(20, true));
}

TEST(RunChecked, ReportsFaults) {
  std::vector<f32> x(4), y(4);
  const BufferView views[] = {buffer_view(x), buffer_view(y)};
  const u64 args[] = {views[0].address, views[1].address, 5};
  EXPECT_THROW(run_checked(scale(), args, views, 1), Error);
  Kernel broken = scale();
  broken.width = 3;
  EXPECT_THROW(run_checked(broken, args, views, 1), Error);
}

}  // namespace
}  // namespace oa::kernel
