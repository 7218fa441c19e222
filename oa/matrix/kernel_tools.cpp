#include "oa/matrix/kernel_tools.h"

#include <bit>
#include <limits>

namespace oa::matrix {

using kernel::U32;
using kernel::U64;
using kernel::Value;

namespace {

constexpr i64 kChunk = 8192;  // positions of a workgroup on the CPU

void launch_over(graph::Lower& l, const std::string& name, i64 count,
                 std::vector<graph::ArgRef> args, const std::function<ElementBody()>& declare,
                 bool checked) {
  if (count == 0) return;
  const kernel::Scalar type = index_type(count);
  const u32 width = l.target().width;
  const bool cpu = l.target().is_cpu();
  // The count may follow from the size of a batch, so it is a parameter.
  const i64 per_group = cpu ? kChunk : width;
  kernel::Kernel k = kernel::trace(name, l.target(), width, [&] {
    const ElementBody body = declare();
    const Value begin = kernel::cast(kernel::group(), type) * index(type, per_group);
    if (!cpu) {
      const Value i = begin + kernel::cast(kernel::lane(), type);
      if (count % width == 0) {
        body(i);
      } else {
        kernel::If(kernel::Bool(i < kernel::extent(type, count)), [&] { body(i); });
      }
    } else {
      const Value left = kernel::extent(type, count) - begin;
      for_lanes(begin, kernel::min(index(type, per_group), left), -1, body);
    }
  });
  const i64 groups = ceil_div(count, per_group);
  if (checked) {
    l.launch_checked(std::move(k), groups, std::move(args));
  } else {
    l.launch(std::move(k), groups, std::move(args));
  }
}

}  // namespace

kernel::Scalar index_type(i64 elements) {
  return elements <= std::numeric_limits<i32>::max() ? kernel::Scalar::U32 : kernel::Scalar::U64;
}

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

u32 bit_width(u64 x) { return static_cast<u32>(std::bit_width(x)); }

void for_lanes(const Value& begin, const Value& count, i64 known, const ElementBody& body) {
  const kernel::Scalar type = begin.scalar();
  const i64 width = kernel::width();
  const Value lane = kernel::cast(kernel::lane(), type);
  // Full gangs run without a mask.
  const Value full = known >= 0 ? index(type, known / width) : count / index(type, width);
  if (known < 0 || known >= width) {
    kernel::For(index(type, 0), full, index(type, 1),
                [&](const Value& it) { body(begin + it * index(type, width) + lane); });
  }
  if (known < 0 || known % width != 0) {
    const Value done = full * index(type, width);
    kernel::If(kernel::Bool(done + lane < count), [&] { body(begin + done + lane); });
  }
}

void launch_elements(graph::Lower& l, const std::string& name, i64 count,
                     std::vector<graph::ArgRef> args, const std::function<ElementBody()>& declare) {
  launch_over(l, name, count, std::move(args), declare, false);
}

void launch_elements_checked(graph::Lower& l, const std::string& name, i64 count,
                             std::vector<graph::ArgRef> args,
                             const std::function<ElementBody()>& declare) {
  launch_over(l, name, count, std::move(args), declare, true);
}

IndexCheck IndexCheck::param() {
  kernel::Buffer status = kernel::param_buffer(kernel::Scalar::U32);
  return {status, kernel::param_u32()};
}

GroupScan group_scan(const Value& v) {
  const u32 subgroup = kernel::subgroup_width(), width = kernel::width();
  const U32 lane = kernel::lane() & word(subgroup - 1);
  Value sum = v;
  for (u32 d = 1; d < subgroup; d *= 2) {
    const kernel::Bool has = lane >= word(d);
    const Value before = kernel::shuffle(sum, kernel::select(has, lane - word(d), lane));
    sum = kernel::select(has, before + sum, sum);
  }
  if (width == subgroup) return {sum, kernel::shuffle(sum, word(subgroup - 1))};
  const u32 count = width / subgroup;
  const kernel::Shared totals(v.scalar(), count);
  const U32 own = kernel::lane() / word(subgroup);
  kernel::If(lane == word(subgroup - 1), [&] { totals[own] = sum; });
  kernel::barrier();
  Value before = kernel::literal(v.scalar(), 0), total = before;
  for (u32 i = 0; i < count; ++i) {
    const Value t = totals[i];
    before = kernel::select(word(i) < own, before + t, before);
    total = total + t;
  }
  kernel::barrier();  // the cells may be written again
  return {before + sum, total};
}

kernel::Buffer shifted(const kernel::Buffer& buffer, const Value& offset) {
  const U64 bytes(kernel::cast(offset, kernel::Scalar::U64) *
                  index(kernel::Scalar::U64, kernel::size_bytes(buffer.elem())));
  return {buffer.elem(), buffer.address() + bytes};
}

U32 lower_bound(const kernel::Buffer& sorted, const U32& begin, const U32& end, const U32& key) {
  const kernel::Var<U32> low(begin), count(end - begin);
  kernel::While([&] { return *count > 0u; },
                [&] {
                  const U32 half = *count >> 1;
                  const U32 middle = *low + half;
                  const kernel::Bool right = U32(sorted[middle]) < key;
                  low = kernel::select(right, middle + 1u, *low);
                  count = kernel::select(right, *count - half - 1u, half);
                });
  return *low;
}

}  // namespace oa::matrix
