// The passes of a split matrix: largest elements of its lines, then their scaled parts together
// with the sums that the check of its numbers needs. A pass that a later product wants for the
// other side too takes the place of the first one.
#include "oa/graph/codegen/contract_matrix_split.h"

#include <algorithm>
#include <functional>

#include "oa/core/error.h"

namespace oa::graph {

using kernel::Buffer;
using kernel::F32;
using kernel::Shared;
using kernel::U32;
using kernel::Value;
using kernel::VarValue;

namespace {

constexpr u32 kTile = 64;          // rows and columns of a tile, one after the other per workgroup
constexpr u32 kQuads = kTile / 4;  // of a row: a lane reads four neighbours
constexpr u32 kPitch = kTile + 1;
constexpr u32 kWorstWords = 4;     // two of each side
constexpr u32 kClearWords = 1024;  // per workgroup

}  // namespace

i64 MatrixSplit::padded(i64 lines) { return ceil_div(lines, 128) * 128; }

MatrixSplit::MatrixSplit(Operand memory, i64 offset, i64 stride, i64 rows, i64 columns,
                         const SplitForm& form, const kernel::Target& target, Launches& out)
    : memory_(memory),
      offset_(offset),
      stride_(stride),
      rows_(rows),
      columns_(columns),
      form_(form),
      target_(target) {
  u32 words = kWorstWords;
  for (u32 side = 0; side < 2; ++side) {
    Side& s = all_[side];
    s.lines = padded(side == 0 ? rows : columns);
    s.worst = 2 * side;
    s.maxima = words;
    s.tallies = words + static_cast<u32>(s.lines);
    words += 3 * static_cast<u32>(s.lines);
  }
  const i64 clears = ceil_div(words, kClearWords);
  control_ = out.add_temp(static_cast<u64>(clears) * kClearWords * 4);
  Launch launch = start("split clear", "zeros for what the passes over an operand add to");
  launch.args = {ArgRef::temporary(control_, true)};
  launch.groups = static_cast<u32>(clears);
  launch.mergeable = true;
  const u32 width = std::min(target_.width, kClearWords / 4);
  launch.kernel = kernel::trace("split_clear", target_, width, [&] {
    const Buffer control = kernel::param_buffer(kernel::Scalar::U32);
    const Value zero = kernel::vec(std::vector<Value>(4, U32(0)));
    for (u32 i = 0; i < kClearWords; i += 4 * width) {
      control.store(kernel::group() * U32(kClearWords) + U32(i) + kernel::lane() * U32(4), zero);
    }
  });
  out.list.push_back(std::move(launch));
}

bool MatrixSplit::want(u32 side, i64 depth, Launches& out) {
  Side& s = all_[side];
  if (s.wanted()) return s.depth == depth;
  s.depth = depth;
  s.scales = out.add_temp(static_cast<u64>(s.lines) * 4);
  for (u32 p = 0; p < form_.parts; ++p) {
    s.parts.push_back(out.add_temp(static_cast<u64>(s.lines * depth) * 2));
  }
  return true;
}

SplitParts MatrixSplit::parts(u32 side) const {
  const Side& s = all_[side];
  return {s.parts, s.scales, control_, s.worst, s.lines};
}

Launch MatrixSplit::start(const char* name, const char* choice) const {
  Launch launch;
  launch.label = name;
  launch.choice = choice;
  return launch;
}

void MatrixSplit::put(Pass& pass, Launch launch, Launches& out) {
  if (pass.sides == 0) {
    pass.at = out.list.size();
    out.list.push_back(std::move(launch));
  } else {
    launch.parts = out.list[pass.at].parts;
    out.list[pass.at] = std::move(launch);
  }
  pass.sides = sides();
}

// What the traced passes share: where this workgroup's tiles lie, and its lanes in them.
struct MatrixSplit::Frame {
  explicit Frame(const MatrixSplit& split)
      : m(split),
        memory(kernel::param_buffer(kernel::Scalar::F32)),
        control(kernel::param_buffer(kernel::Scalar::U32)),
        type(m.reach() < (i64{1} << 31) ? kernel::Scalar::U32 : kernel::Scalar::U64),
        span(static_cast<u32>(m.span())),
        spans(static_cast<u32>(ceil_div(m.tiles(1), m.span()))),
        row0(kernel::group() / U32(spans) * U32(kTile)),
        tile0(kernel::group() % U32(spans) * U32(span)),
        tiles(U32(kernel::min(U32(span), U32(static_cast<u32>(m.tiles(1))) - tile0))),
        quad(kernel::lane() % U32(kQuads)),
        height(kernel::width() / kQuads),
        together(std::min(m.target_.subgroup, kQuads)) {}

  u32 units() const { return kTile / height; }
  U32 row(u32 u) const { return kernel::lane() / U32(kQuads) + U32(u * height); }  // in the tile
  U32 column(const U32& tile) const { return (tile0 + tile) * U32(kTile) + quad * U32(4); }
  Value wide(const Value& x) const { return kernel::cast(x, type); }
  Value wide(i64 x) const { return kernel::constant_int(type, x); }

  // Four elements of each of this lane's rows; zeros outside of the matrix.
  std::vector<std::array<Value, 4>> load(const U32& tile) const {
    const U32 last_row(static_cast<u32>(m.rows_ - 1)), last(static_cast<u32>(m.columns_ - 4));
    const U32 c = column(tile);
    const bool ragged_rows = m.tiles(0) * kTile > m.rows_,
               ragged_columns = m.tiles(1) * kTile > m.columns_;
    std::vector<std::array<Value, 4>> packs;
    for (u32 u = 0; u < units(); ++u) {
      const U32 r = row0 + row(u);
      const Value at = wide(ragged_rows ? U32(kernel::min(r, last_row)) : r) * wide(m.stride_) +
                       wide(ragged_columns ? U32(kernel::min(c, last)) : c) + wide(m.offset_);
      const Value four = memory.load_constant(at, 4);
      std::array<Value, 4> pack;
      for (u32 i = 0; i < 4; ++i) {
        pack[i] = kernel::extract(four, i);
        const F32 zero(0.0f);
        if (ragged_rows) pack[i] = kernel::select(r <= last_row, pack[i], zero);
        if (ragged_columns) pack[i] = kernel::select(c <= last, pack[i], zero);
      }
      packs.push_back(pack);
    }
    return packs;
  }

  // Calls body(tile, packs) for the tiles, the next of which is on its way meanwhile.
  template <class Body>
  void each_tile(const Body& body) const {
    std::vector<VarValue> ahead;
    for (const auto& pack : load(U32(0))) {
      for (const Value& x : pack) ahead.emplace_back(x);
    }
    kernel::For(U32(0), tiles, U32(1), [&](const Value& t) {
      std::vector<std::array<Value, 4>> packs(units());
      for (u32 i = 0; i < 4 * units(); ++i) packs[i / 4][i % 4] = ahead[i].get();
      const auto coming = load(U32(kernel::min(U32(t) + U32(1), tiles - U32(1))));
      for (u32 i = 0; i < 4 * units(); ++i) ahead[i].set(coming[i / 4][i % 4]);
      body(U32(t), packs);
    });
  }

  // Combines over the lanes of a row as far as they are one subgroup's; the first of those then
  // calls `use` with the result.
  template <class Combine, class Use>
  void over_row(Value v, const Combine& combine, const Use& use) const {
    for (u32 apart = 1; apart < together; apart *= 2) {
      v = combine(v, kernel::shuffle_xor(v, apart));
    }
    kernel::If(kernel::lane() % U32(together) == U32(0), [&] { use(v); });
  }
  // The same over the two rows of a subgroup of 32.
  template <class Combine>
  Value over_pair(const Value& v, const Combine& combine) const {
    return m.target_.subgroup >= 2 * kQuads ? Value(combine(v, kernel::shuffle_xor(v, kQuads))) : v;
  }
  void if_first_of_pair(const std::function<void()>& body) const {
    if (m.target_.subgroup < 2 * kQuads) return body();
    kernel::If(kernel::Bool((kernel::lane() & U32(kQuads)) == U32(0)), body);
  }
  // For columns of the workgroup, every one once: body(number in the workgroup).
  template <class Body>
  void each_column(const Body& body) const {
    kernel::For(kernel::lane(), tiles * U32(kTile), U32(kernel::width()), body);
  }
  // Where line `line` exists in the padded lines of a side.
  void if_line(u32 side, const U32& line, const std::function<void()>& body) const {
    const auto lines = static_cast<u32>(m.all_[side].lines);
    if (m.tiles(side) * kTile <= lines) return body();
    kernel::If(line < U32(lines), body);
  }

  const MatrixSplit& m;
  Buffer memory, control;
  kernel::Scalar type;  // of positions
  u32 span, spans;      // tiles of a workgroup, workgroups side by side
  U32 row0, tile0, tiles, quad;
  u32 height, together;
};

// Above every position in memory.
i64 MatrixSplit::reach() const {
  const auto area = [&](u32 side) { return all_[side].lines * all_[side].depth; };
  return std::max({offset_ + rows_ * stride_, area(0), area(1)});
}

// Of all that is read or written along rows (axis 0) or columns (axis 1), padding included.
i64 MatrixSplit::tiles(u32 axis) const {
  i64 most = 0;
  for (u32 side = 0; side < 2; ++side) {
    if (all_[side].wanted())
      most = std::max(most, side == axis ? all_[side].lines : all_[side].depth);
  }
  return ceil_div(most, kTile);
}

i64 MatrixSplit::span() const {
  i64 span = tiles(1);
  const i64 enough = target_.threads / 2;
  while (span > 1 && tiles(0) * ceil_div(tiles(1), span) < enough) span = ceil_div(span, 2);
  return std::min<i64>(span, 8);  // what it keeps of columns fits its memory
}

u32 MatrixSplit::width() const { return std::min(target_.width, 256u); }

void MatrixSplit::lower_maxima(Launches& out) {
  if (maxima_.sides == sides()) return;
  Launch launch = start("split maxima", "the largest elements of an operand's lines");
  launch.args = {ArgRef::value(memory_), ArgRef::temporary(control_, true)};
  launch.groups = static_cast<u32>(tiles(0) * ceil_div(tiles(1), span()));
  const auto larger = [](const Value& a, const Value& b) { return kernel::max(a, b); };
  launch.kernel = kernel::trace("split_maxima", target_, width(), [&] {
    const Frame f(*this);
    std::vector<VarValue> rows;
    std::optional<Shared> columns;
    if (all_[0].wanted()) {
      for (u32 u = 0; u < f.units(); ++u) rows.emplace_back(U32(0));
    }
    if (all_[1].wanted()) {
      columns.emplace(kernel::Scalar::U32, static_cast<u32>(span()) * kTile);
      f.each_column([&](const U32& i) { (*columns)[i] = U32(0); });
      kernel::barrier();
    }
    f.each_tile([&](const U32& tile, const auto& packs) {
      std::vector<Value> most(4, U32(0));
      for (u32 u = 0; u < packs.size(); ++u) {
        std::array<Value, 4> a;
        for (u32 i = 0; i < 4; ++i) {
          a[i] = magnitude_bits(packs[u][i]);
          most[i] = kernel::max(most[i], a[i]);
        }
        if (rows.empty()) continue;
        rows[u].set(kernel::max(rows[u].get(),
                                kernel::max(kernel::max(a[0], a[1]), kernel::max(a[2], a[3]))));
      }
      if (!columns) return;
      for (Value& x : most) x = f.over_pair(x, larger);
      f.if_first_of_pair([&] {
        for (u32 i = 0; i < 4; ++i) {
          columns->atomic(kernel::AtomicOp::Max, tile * U32(kTile) + f.quad * U32(4) + U32(i),
                          most[i]);
        }
      });
    });
    for (u32 u = 0; u < rows.size(); ++u) {
      const U32 line = f.row0 + f.row(u);
      f.over_row(rows[u].get(), larger, [&](const Value& v) {
        f.if_line(0, line,
                  [&] { f.control.atomic(kernel::AtomicOp::Max, U32(all_[0].maxima) + line, v); });
      });
    }
    if (!columns) return;
    kernel::barrier();
    f.each_column([&](const U32& i) {
      const U32 line = f.tile0 * U32(kTile) + i;
      f.if_line(1, line, [&] {
        f.control.atomic(kernel::AtomicOp::Max, U32(all_[1].maxima) + line, columns->load(i));
      });
    });
  });
  put(maxima_, std::move(launch), out);
}

void MatrixSplit::lower_parts(Launches& out) {
  if (parts_.sides == sides()) return;
  Launch launch = start("split parts", "16-bit parts of an operand, scaled");
  launch.args = {ArgRef::value(memory_), ArgRef::temporary(control_, true)};
  for (const Side& s : all_) {
    if (!s.wanted()) continue;
    launch.args.push_back(ArgRef::temporary(s.scales, true));
    for (u32 p : s.parts) launch.args.push_back(ArgRef::temporary(p, true));
  }
  launch.groups = static_cast<u32>(tiles(0) * ceil_div(tiles(1), span()));
  launch.kernel =
      kernel::trace("split_parts", target_, width(), [&] { trace_parts(Frame(*this)); });
  put(parts_, std::move(launch), out);
}

namespace {

Value plus(const Value& a, const Value& b) { return a + b; }

U32 units_of(const Value& sum) {
  // Infinite and undefined sums saturate; their lines are refused by their maxima.
  return U32(kernel::cast(sum * F32(kSumUnit), kernel::Scalar::U32));
}

}  // namespace

void MatrixSplit::trace_parts(const Frame& f) {
  const bool by_row = all_[0].wanted(), by_column = all_[1].wanted();
  std::array<std::vector<Buffer>, 2> to;
  std::array<std::optional<Buffer>, 2> scales;
  for (u32 side = 0; side < 2; ++side) {
    if (!all_[side].wanted()) continue;
    scales[side].emplace(kernel::param_buffer(kernel::Scalar::U32));
    for (u32 p = 0; p < form_.parts; ++p) to[side].push_back(kernel::param_buffer(form_.elem));
  }
  const auto field = [&](u32 side, const U32& line) {
    const U32 last(static_cast<u32>(all_[side].lines - 1));
    return scale_field(U32(f.control.load(U32(all_[side].maxima) + U32(kernel::min(line, last)))));
  };
  const auto power = [](const U32& bits) { return kernel::bitcast<F32>(bits << U32(23)); };

  std::vector<F32> row_scale;
  std::vector<VarValue> row_small, row_sum;
  std::optional<Shared> turned;
  if (by_row) {
    for (u32 u = 0; u < f.units(); ++u) {
      const U32 line = f.row0 + f.row(u), bits = field(0, line);
      row_scale.push_back(power(bits));
      row_small.emplace_back(U32(0));
      row_sum.emplace_back(F32(0.0f));
      kernel::If(kernel::Bool((f.quad == U32(0)) & (f.tile0 == U32(0))),
                 [&] { f.if_line(0, line, [&] { (*scales[0])[line] = bits; }); });
    }
    turned.emplace(kernel::Scalar::F32, kTile * kPitch);
  }
  std::optional<Shared> column_small, column_sum;
  if (by_column) {
    for (auto* s : {&column_small, &column_sum}) {
      s->emplace(kernel::Scalar::U32, static_cast<u32>(span()) * kTile);
      f.each_column([&](const U32& i) { (**s)[i] = U32(0); });
    }
    kernel::If(f.row0 == U32(0), [&] {
      f.each_column([&](const U32& i) {
        const U32 line = f.tile0 * U32(kTile) + i;
        f.if_line(1, line, [&] { (*scales[1])[line] = field(1, line); });
      });
    });
    kernel::barrier();
  }

  f.each_tile([&](const U32& tile, const auto& packs) {
    std::vector<Value> small(4, U32(0)), sum(4, F32(0.0f));
    std::vector<F32> column_scale;
    if (by_column) {
      const U32 last(static_cast<u32>(all_[1].lines - 4));
      const Value most =
          f.control.load(U32(all_[1].maxima) + U32(kernel::min(f.column(tile), last)), 4);
      for (u32 i = 0; i < 4; ++i) {
        column_scale.push_back(power(scale_field(U32(kernel::extract(most, i)))));
      }
    }
    for (u32 u = 0; u < packs.size(); ++u) {
      std::vector<F32> scaled;
      for (u32 i = 0; i < 4; ++i) {
        if (by_row) {
          const F32 x = F32(packs[u][i]) * row_scale[u];
          row_small[u].set(row_small[u].get() + is_small(x, form_));
          row_sum[u].set(row_sum[u].get() + kernel::abs(x));
          (*turned)[(f.quad * U32(4) + U32(i)) * U32(kPitch) + f.row(u)] = x;
        }
        if (by_column) {
          scaled.push_back(F32(packs[u][i]) * column_scale[i]);
          small[i] = small[i] + is_small(scaled[i], form_);
          sum[i] = sum[i] + kernel::abs(scaled[i]);
        }
      }
      if (!by_column) continue;
      const U32 k = f.row0 + f.row(u), line = f.column(tile);
      const auto store = [&] {
        f.if_line(1, line, [&] {
          store_parts(to[1], f.wide(k) * f.wide(all_[1].lines) + f.wide(line), scaled);
        });
      };
      if (tiles(0) * kTile <= all_[1].depth) {
        store();
      } else {
        kernel::If(k < U32(static_cast<u32>(all_[1].depth)), store);
      }
    }
    if (by_column) {
      for (u32 i = 0; i < 4; ++i) {
        small[i] = f.over_pair(small[i], plus);
        sum[i] = f.over_pair(sum[i], plus);
      }
      f.if_first_of_pair([&] {
        for (u32 i = 0; i < 4; ++i) {
          const U32 at = tile * U32(kTile) + f.quad * U32(4) + U32(i);
          column_small->atomic(kernel::AtomicOp::Add, at, small[i]);
          column_sum->atomic(kernel::AtomicOp::Add, at, units_of(sum[i]));
        }
      });
    }
    if (by_row) {
      kernel::barrier();
      store_turned(f, tile, *turned, to[0]);
      kernel::barrier();
    }
  });

  const auto add = [&](u32 side, const U32& line, u32 which, const Value& v) {
    f.if_line(side, line, [&] {
      f.control.atomic(kernel::AtomicOp::Add, U32(all_[side].tallies + which) + line * U32(2), v);
    });
  };
  for (u32 u = 0; u < row_small.size(); ++u) {
    const U32 line = f.row0 + f.row(u);
    f.over_row(row_small[u].get(), plus, [&](const Value& v) { add(0, line, 0, v); });
    f.over_row(row_sum[u].get(), plus, [&](const Value& v) { add(0, line, 1, units_of(v)); });
  }
  if (!by_column) return;
  kernel::barrier();
  f.each_column([&](const U32& i) {
    const U32 line = f.tile0 * U32(kTile) + i;
    add(1, line, 0, column_small->load(i));
    add(1, line, 1, column_sum->load(i));
  });
}

// The parts of four neighbours, rounded by the stores.
void MatrixSplit::store_parts(std::span<const Buffer> to, const Value& at,
                              std::span<const F32> scaled) const {
  std::vector<std::vector<Value>> parts(form_.parts);
  for (const F32& x : scaled) {
    const std::vector<F32> own = parts_of(x, form_);
    for (u32 p = 0; p < form_.parts; ++p) parts[p].push_back(own[p]);
  }
  for (u32 p = 0; p < form_.parts; ++p) to[p].store(at, kernel::vec(parts[p]));
}

// Rows as lines: their elements at one k lie side by side.
void MatrixSplit::store_turned(const Frame& f, const U32& tile, const Shared& turned,
                               std::span<const Buffer> to) const {
  const Side& s = all_[0];
  for (u32 u = 0; u < f.units(); ++u) {
    const U32 depth = f.row(u), across = f.quad * U32(4);
    std::vector<F32> scaled;
    for (u32 i = 0; i < 4; ++i) {
      scaled.emplace_back(turned.load(depth * U32(kPitch) + across + U32(i)));
    }
    const U32 k = (f.tile0 + tile) * U32(kTile) + depth, line = f.row0 + across;
    const auto store = [&] {
      f.if_line(0, line,
                [&] { store_parts(to, f.wide(k) * f.wide(s.lines) + f.wide(line), scaled); });
    };
    if (tiles(1) * kTile <= s.depth) {
      store();
    } else {
      kernel::If(k < U32(static_cast<u32>(s.depth)), store);
    }
  }
}

void MatrixSplit::lower_verdict(Launches& out) {
  if (verdict_.sides == sides()) return;
  Launch launch =
      start("split verdict", "whether the operands' exponents allow 16-bit parts, else f32 runs");
  launch.args = {ArgRef::temporary(control_, true)};
  const u32 lanes = width();
  std::array<u32, 2> groups{};
  for (u32 side = 0; side < 2; ++side) {
    if (all_[side].wanted()) groups[side] = static_cast<u32>(ceil_div(all_[side].lines, lanes));
  }
  launch.groups = groups[0] + groups[1];
  launch.kernel = kernel::trace("split_verdict", target_, lanes, [&] {
    const Buffer control = kernel::param_buffer(kernel::Scalar::U32);
    for (u32 side = 0; side < 2; ++side) {
      if (groups[side] == 0) continue;
      const Side& s = all_[side];
      const U32 first = kernel::group() - U32(side == 0 ? 0 : groups[0]);
      kernel::If(first < U32(groups[side]), [&] {
        const U32 last(static_cast<u32>(s.lines - 1));
        const U32 line(kernel::min(first * U32(lanes) + kernel::lane(), last));
        const U32 most(control.load(U32(s.maxima) + line));
        const Value tally = control.load(U32(s.tallies) + line * U32(2), 2);
        const U32 small = U32(kernel::extract(tally, 0)) +
                          kernel::select(most >= U32(0x7f80'0000), U32(kNever), U32(0));
        const U32 sum =
            U32(kernel::extract(tally, 1)) + kernel::select(most == U32(0), U32(kAlways), U32(0));
        const std::vector<Value> both = kernel::group_reduce(
            std::vector<Value>{small, ~sum},
            [](std::span<const Value> a, std::span<const Value> b) {
              return std::vector<Value>{kernel::max(a[0], b[0]), kernel::max(a[1], b[1])};
            });
        kernel::If(kernel::lane() == U32(0), [&] {
          for (u32 i = 0; i < 2; ++i) {
            control.atomic(kernel::AtomicOp::Max, U32(s.worst + i), both[i]);
          }
        });
      });
    }
  });
  put(verdict_, std::move(launch), out);
}

std::pair<MatrixSplit*, u32> SplitPool::find(ContractNest& c, const SplitForm& form, u32 i,
                                             i64 depth, Launches& out) {
  const auto view = c.matrix(i);
  if (!view || c.operand_dtype(i) != DType::F32) return {};
  const i64 lines = i == 0 ? c.rows() : c.columns(), k = c.depth();
  const u32 side = view->depth == 1 ? 0 : 1;
  if (view->depth != 1 && view->line != 1) return {};
  const i64 stride = side == 0 ? view->line : view->depth;
  const i64 rows = side == 0 ? lines : k, columns = side == 0 ? k : lines;
  if (stride < columns || view->offset % 4 != 0 || stride % 4 != 0 || columns % 4 != 0) return {};
  for (const auto& split : all_) {
    if (split->is(view->memory, view->offset, stride, rows, columns, form) &&
        split->want(side, depth, out)) {
      return {split.get(), side};
    }
  }
  all_.push_back(std::make_unique<MatrixSplit>(view->memory, view->offset, stride, rows, columns,
                                               form, c.in().target, out));
  OA_CHECK(all_.back()->want(side, depth, out));
  return {all_.back().get(), side};
}

}  // namespace oa::graph
