// Small pieces of kernels that ops with kernels of their own are made from.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "oa/graph/lower.h"
#include "oa/kernel/lang.h"

namespace oa::matrix {

// Positions of a buffer: U32, or U64 where it may have more elements than that.
kernel::Scalar index_type(i64 elements);

inline kernel::Value index(kernel::Scalar type, i64 x) { return kernel::constant_int(type, x); }
inline kernel::U32 word(i64 x) { return kernel::U32(kernel::constant_int(kernel::Scalar::U32, x)); }

// The k-th Scalar attribute as an element of `dtype`: exact where it fits, else saturated.
kernel::Value scalar_as(graph::Emit& e, u32 k, DType dtype);

i64 ceil_div(i64 a, i64 b);
u32 bit_width(u64 x);  // bits that hold x: 0 for 0

// Every lane with its index begin + lane, begin + lane + width, ... below begin + count. `known` is
// the count where it is a constant, else -1.
void for_lanes(const kernel::Value& begin, const kernel::Value& count, i64 known,
               const std::function<void(const kernel::Value&)>& body);

// One launch that calls a body for every position 0 .. count-1. `declare` runs once in the kernel:
// it makes the parameters for `args` and returns the body.
using ElementBody = std::function<void(const kernel::Value&)>;
void launch_elements(graph::Lower& l, const std::string& name, i64 count,
                     std::vector<graph::ArgRef> args, const std::function<ElementBody()>& declare);
// The same with checked indices; `declare` makes the parameters of the check last, by
// IndexCheck::param().
void launch_elements_checked(graph::Lower& l, const std::string& name, i64 count,
                             std::vector<graph::ArgRef> args,
                             const std::function<ElementBody()>& declare);

struct IndexCheck {
  static IndexCheck param();
  void report(const kernel::Value& bad, const kernel::Value& row,
              const kernel::Value& value) const {
    graph::report_index(status, code, bad, row, value);
  }
  kernel::Buffer status;
  kernel::U32 code;
};

// Sum of the values of lanes 0 .. own, and of all lanes, in a fixed order. Calls barrier() unless
// the workgroup is one subgroup.
struct GroupScan {
  kernel::Value inclusive;
  kernel::Value total;
};
GroupScan group_scan(const kernel::Value& v);

// `buffer` from element `offset` (U64) on.
kernel::Buffer shifted(const kernel::Buffer& buffer, const kernel::Value& offset);

// First position i of begin .. end (U32) with sorted[i] >= key.
kernel::U32 lower_bound(const kernel::Buffer& sorted, const kernel::U32& begin,
                        const kernel::U32& end, const kernel::U32& key);

}  // namespace oa::matrix
