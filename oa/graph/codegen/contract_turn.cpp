#include "oa/graph/codegen/contract_turn.h"

#include "oa/core/error.h"

namespace oa::graph {

using kernel::Buffer;

using kernel::Shared;
using kernel::U32;
using kernel::Value;

namespace {

constexpr i64 kSquare = 64;          // lines and elements of k of a workgroup
constexpr u32 kWords = kSquare / 2;  // of a line
constexpr u32 kPitch = kWords + 1;   // in workgroup memory, so that lines lie in other banks
constexpr u32 kPack = 8;             // halves in 16 bytes

}  // namespace

u32 lower_turned(ContractNest& c, u32 operand, Launches& out) {
  const kernel::Target& target = c.in().target;
  const u32 width = std::min(target.width, 256u);
  const i64 batches = c.rows() / c.batch_rows();
  const i64 lines = operand == 0 ? c.batch_rows() : c.columns();
  OA_CHECK(lines % kPack == 0 && c.depth() % kPack == 0);
  const i64 blocks = ceil_div(lines, kSquare), steps = ceil_div(c.depth(), kSquare);
  const u32 temp = out.add_temp(static_cast<u64>(batches * lines * c.depth()) * 2);
  Launch launch = c.make_launch(false);
  launch.label += " (turned operand)";
  launch.choice = "turns an operand, so that the product reads it in wide pieces";
  launch.flops = 0;
  launch.args.push_back(ArgRef::temporary(temp, true));
  launch.groups = group_count(c.in(), batches * blocks * steps);
  launch.kernel = kernel::trace("contract_turn", target, width, [&] {
    c.declare(false);
    const Buffer to = kernel::param_buffer(kernel::Scalar::U32);
    const Shared square(kernel::Scalar::U32, static_cast<u32>(kSquare) * kPitch);
    const TileSource source(c, operand, kSquare, kSquare, kPack, width);
    const Buffer from(kernel::Scalar::U32, c.memory(source.direct()).address());
    const Value group = c.as_index(kernel::group());
    const Value step = group % c.index(steps), rest = group / c.index(steps);
    const Value batch = rest / c.index(blocks), line = rest % c.index(blocks) * c.index(kSquare);
    const Value first = step * c.index(kSquare);
    const Grid::Place at{.slice = c.index(0),
                         .batch = batch,
                         .base = batch * c.index(c.batch_rows()),
                         .row = operand == 0 ? line : c.index(0),
                         .column = operand == 0 ? c.index(0) : line};
    for (u32 u = 0; u < source.units(); ++u) {
      const auto [across, depth] = source.spot(u);
      const Value k = kernel::min(first + c.as_index(depth), c.index(c.depth() - kPack));
      const Point p = source.point(at, c.as_index(across), k);
      const Value four = from.load_constant(c.position(source.direct(), p) / c.index(2), 4);
      for (u32 i = 0; i < 4; ++i) {
        square[across * U32(kPitch) + depth / U32(2) + U32(i)] = kernel::extract(four, i);
      }
    }
    kernel::barrier();
    // Two neighbours along k of eight lines at a time.
    constexpr u32 kAcross = static_cast<u32>(kSquare) / kPack;
    kernel::For(kernel::lane(), U32(kWords * kAcross), U32(width), [&](U32 id) {
      const U32 across = id % U32(kAcross) * U32(kPack), word = id / U32(kAcross);
      const Value k = first + c.as_index(word) * c.index(2);
      const Value l = line + c.as_index(across);
      kernel::If(kernel::Bool((k < c.index(c.depth())) & (l < c.index(lines))), [&] {
        std::vector<Value> even, odd;
        for (u32 i = 0; i < kPack; i += 2) {
          const U32 a(square.load((across + U32(i)) * U32(kPitch) + word));
          const U32 b(square.load((across + U32(i + 1)) * U32(kPitch) + word));
          even.push_back((a & U32(0xffff)) | (b << U32(16)));
          odd.push_back((a >> U32(16)) | (b & U32(0xffff'0000)));
        }
        const Value words = ((batch * c.index(c.depth()) + k) * c.index(lines) + l) / c.index(2);
        to.store(words, kernel::vec(even));
        to.store(words + c.index(lines / 2), kernel::vec(odd));
      });
    });
  });
  out.list.push_back(std::move(launch));
  return temp;
}

}  // namespace oa::graph
