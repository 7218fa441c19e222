// Products on a GPU whose sums are cut into slices: how many, and the kernel that adds them.
#include "oa/graph/codegen/contract_tiles.h"

namespace oa::graph {

using kernel::Buffer;
using kernel::Value;
using kernel::VarValue;

namespace {

constexpr i64 kTile = 128;    // results of this square occupy a processor
constexpr i64 kFull = 128;    // as many of them need no slices
constexpr i64 kWanted = 264;  // workgroups at most, so that none begins when others end
constexpr i64 kMostSlices = 64;
constexpr i64 kLongSum = 256;  // shorter ones stay whole
constexpr i64 kTogether = 8;   // slices whose sums are read at once

}  // namespace

DepthSlices choose_slices(const ContractNest& c) {
  const i64 tiles = Grid(c, kTile, kTile).tiles();
  if (tiles >= kFull || c.depth() < kLongSum) return {.depth = c.depth()};
  const i64 wanted = std::min({kWanted / tiles, ceil_div(c.depth(), kSliceUnit), kMostSlices});
  DepthSlices s;
  s.depth = ceil_div(ceil_div(c.depth(), wanted), kSliceUnit) * kSliceUnit;
  s.count = ceil_div(c.depth(), s.depth);
  if (s.count == 1) s.depth = c.depth();
  return s;
}

DepthSlices even_slices(const ContractNest& c, const DepthSlices& slices) {
  for (i64 count = slices.count; 2 * count >= slices.count && count > 1; --count) {
    if (c.depth() % (count * kSliceUnit) == 0) return {.count = count, .depth = c.depth() / count};
  }
  return {.depth = c.depth()};
}

void lower_slice_sums(ContractNest& c, const DepthSlices& slices, Launches& out) {
  const i64 all = c.rows() * c.columns();
  const u32 width = std::min(c.in().target.width, 128u);
  Launch launch = c.make_launch();
  launch.label += " (sum of slices)";
  launch.flops = 0;
  launch.args.push_back(ArgRef::temporary(slices.temp));
  launch.groups = group_count(c.in(), ceil_div(all, width));
  launch.kernel = kernel::trace("contract_slice_sums", c.in().target, width, [&] {
    c.declare();
    const Buffer sums = kernel::param_buffer(kernel::Scalar::F32);
    const Value at = c.as_index(kernel::group()) * c.index(width) + c.as_index(kernel::lane());
    const auto body = [&] {
      const VarValue total(kernel::constant(kernel::Scalar::F32, 0));
      const auto add = [&](const Value& first, i64 count) {
        std::vector<Value> parts;
        for (i64 i = 0; i < count; ++i) {
          parts.push_back(sums.load((first + c.index(i)) * c.index(all) + at));
        }
        Value sum = total.get();
        for (const Value& part : parts) sum = sum + part;
        total.set(sum);
      };
      const i64 whole = slices.count / kTogether * kTogether;
      kernel::For(c.index(0), c.index(whole), c.index(kTogether),
                  [&](const Value& s) { add(s, kTogether); });
      if (slices.count > whole) add(c.index(whole), slices.count - whole);
      Point p = c.point(at / c.index(c.columns()), at % c.index(c.columns()), c.index(0));
      c.store(p, total.get());
    };
    if (all % width == 0) {
      body();
    } else {
      kernel::If(kernel::Bool(at < c.index(all)), body);
    }
  });
  out.list.push_back(std::move(launch));
}

}  // namespace oa::graph
