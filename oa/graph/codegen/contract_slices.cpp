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
  // Four neighbours to a lane where that leaves work for all.
  const u32 pack = c.packs() && all >= i64{1} << 16 ? 4 : 1;
  const u32 width = std::min(c.in().target.width, 128u);
  Launch launch = c.make_launch();
  launch.label += slices.several() ? " (sum of slices)" : " (epilogue)";
  launch.choice = slices.several()
                      ? "adds the slices of a long sum in order"
                      : "a long epilogue apart from the product, which needs the registers";
  launch.flops = 0;
  launch.args.push_back(ArgRef::temporary(slices.temp));
  launch.groups = group_count(c.in(), ceil_div(all / pack, width));
  launch.kernel = kernel::trace("contract_slice_sums", c.in().target, width, [&] {
    c.declare();
    const Buffer sums = kernel::param_buffer(kernel::Scalar::F32);
    const Value id = c.as_index(kernel::group()) * c.index(width) + c.as_index(kernel::lane());
    const Value at = id * c.index(pack);
    const auto body = [&] {
      std::vector<VarValue> totals;
      for (u32 i = 0; i < pack; ++i) {
        totals.emplace_back(kernel::constant(kernel::Scalar::F32, 0));
      }
      const auto add = [&](const Value& first, i64 count) {
        std::vector<Value> parts;
        for (i64 s = 0; s < count; ++s) {
          parts.push_back(sums.load((first + c.index(s)) * c.index(all) + at, pack));
        }
        for (u32 i = 0; i < pack; ++i) {
          Value sum = totals[i].get();
          for (const Value& part : parts) {
            sum = sum + (pack == 1 ? part : kernel::extract(part, i));
          }
          totals[i].set(sum);
        }
      };
      if (slices.several()) {
        const i64 whole = slices.count / kTogether * kTogether;
        kernel::For(c.index(0), c.index(whole), c.index(kTogether),
                    [&](const Value& s) { add(s, kTogether); });
        if (slices.count > whole) add(c.index(whole), slices.count - whole);
      } else {
        const Value x = sums.load(at, pack);
        for (u32 i = 0; i < pack; ++i) totals[i].set(pack == 1 ? x : kernel::extract(x, i));
      }
      const Value row = at / c.index(c.columns()), column = at % c.index(c.columns());
      if (pack == 1) {
        Point p = c.point(row, column, c.index(0));
        c.store(p, totals[0].get());
      } else {
        std::vector<Value> four;
        for (const VarValue& t : totals) four.push_back(t.get());
        c.store_pack(row, column, four);
      }
    };
    if (all / pack % width == 0) {
      body();
    } else {
      kernel::If(kernel::Bool(at < c.index(all)), body);
    }
  });
  out.list.push_back(std::move(launch));
}

}  // namespace oa::graph
