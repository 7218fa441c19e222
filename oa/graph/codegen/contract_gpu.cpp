// Products on a GPU: a workgroup computes a tile of C from tiles of A and B in its shared memory,
// two of each, so that one barrier per step along k suffices. Elements come early, into registers,
// while the tile before is multiplied.
//
// Two kernels: f32 by plain multiply-adds, each lane blocks of 4x4 of C; 16-bit floats by matrix
// fragments, each subgroup a rectangle of 16x16 fragments.
#include <algorithm>
#include <array>

#include "oa/graph/codegen/contract_split.h"
#include "oa/graph/codegen/contract_tiles.h"
#include "oa/graph/codegen/contract_turn.h"

namespace oa::graph {
namespace {

using kernel::Buffer;
using kernel::Layout;
using kernel::Scalar;
using kernel::Shared;
using kernel::U32;
using kernel::Value;
using kernel::VarValue;
using Axis = ContractNest::Axis;

constexpr u32 kSide = kFragmentSide;
constexpr FragmentTile kSmallFragments{2, 2, 2, 2};

// --- f32
// ------------------------------------------------------------------------------------------

struct PlainTile {
  u32 lane_rows, lane_columns;  // of C per lane, multiples of 4
  u32 warp_rows, warp_columns;  // groups of 4 x 8 lanes
  u32 depth;

  u32 threads() const { return 32 * warp_rows * warp_columns; }
  u32 rows() const { return 4 * lane_rows * warp_rows; }
  u32 columns() const { return 8 * lane_columns * warp_columns; }
};

class PlainContract {
 public:
  // With a verdict the kernel only computes what the split product did not.
  PlainContract(ContractNest& c, const PlainTile& tile, const DepthSlices& slices,
                std::optional<SplitVerdict> verdict)
      : c_(c),
        verdict_(verdict),
        tile_(tile),
        results_(c, slices),
        depth_(slices.depth),
        grid_(c, tile.rows(), tile.columns(), slices.count),
        a_(c, 0, tile.rows(), tile.depth, 4, tile.threads(), slices.count * slices.depth),
        b_(c, 1, tile.columns(), tile.depth, 4, tile.threads(), slices.count * slices.depth) {}

  Launch launch() {
    Launch launch = results_.make_launch();
    launch.groups = group_count(c_.in(), grid_.groups());
    launch.choice = fmt::format("{}; tiles of {} x {} in shared memory, {} lanes", c_.extents(),
                                tile_.rows(), tile_.columns(), tile_.threads());
    if (verdict_) {
      verdict_->add_args(launch);
      launch.label += " in f32";
      launch.flops = 0;
    }
    // Workgroups that do nothing cost time, too: few are launched, which then do all the tiles.
    const u32 all = launch.groups;
    if (verdict_) launch.groups = std::min(all, std::max(64u, c_.in().target.threads / 4));
    launch.kernel = kernel::trace("contract_gpu", c_.in().target, tile_.threads(), [&] {
      results_.declare();
      if (!verdict_) return run(kernel::group());
      kernel::If(!verdict_->holds(), [&] {
        kernel::For(kernel::group(), U32(all), U32(launch.groups), [&](const U32& group) {
          kernel::barrier();
          run(group);
        });
      });
    });
    return launch;
  }

 private:
  struct Tiles {
    Shared a, b;
  };
  u32 a_pitch() const { return tile_.rows() + 4; }
  u32 b_pitch() const { return tile_.columns() + 4; }

  void run(const U32& group) {
    at_ = grid_.place(c_, group);
    std::vector<Tiles> tiles;
    for (u32 i = 0; i < 2; ++i) {
      tiles.push_back({Shared(Scalar::F32, a_pitch() * tile_.depth),
                       Shared(Scalar::F32, b_pitch() * tile_.depth)});
    }
    const U32 warp = kernel::lane() / U32(32), in_warp = kernel::lane() % U32(32);
    row_ = warp / U32(tile_.warp_columns) * U32(4 * tile_.lane_rows) + in_warp / U32(8) * U32(4);
    column_ =
        warp % U32(tile_.warp_columns) * U32(8 * tile_.lane_columns) + in_warp % U32(8) * U32(4);
    for (u32 i = 0; i < tile_.lane_rows * tile_.lane_columns; ++i) {
      sums_.emplace_back(kernel::constant(Scalar::F32, 0));
    }
    const i64 steps = ceil_div(depth_, tile_.depth);
    first_ = at_.slice * c_.of_depth(depth_);
    store_tile(tiles[0], load_tile(c_.index(0)));
    kernel::barrier();
    if (steps > 1) {
      kernel::For(c_.index(0), c_.of_depth(steps / 2), c_.index(1), [&](const Value& pair) {
        const Value t = pair * c_.index(2);
        const std::vector<Value> odd = load_tile(t + c_.index(1));
        multiply(tiles[0]);
        store_tile(tiles[1], odd);
        kernel::barrier();
        const std::vector<Value> even =
            load_tile(kernel::min(t + c_.index(2), c_.of_depth(steps - 1)));
        multiply(tiles[1]);
        store_tile(tiles[0], even);
        kernel::barrier();
      });
    }
    if (steps % 2 == 1) multiply(tiles[0]);
    store();
  }

  // The elements of this lane, A's packs before B's.
  std::vector<Value> load_tile(const Value& step) {
    std::vector<Value> values;
    for (const TileSource* s : {&a_, &b_}) {
      for (u32 u = 0; u < s->units(); ++u) {
        for (const Value& v : s->pack(at_, s->spot(u), first_ + step * c_.index(tile_.depth))) {
          values.push_back(v);
        }
      }
    }
    return values;
  }

  // Tiles lie as [k][row] and [k][column].
  void store_tile(const Tiles& t, const std::vector<Value>& values) {
    size_t next = 0;
    for (const TileSource* s : {&a_, &b_}) {
      const Shared& to = s == &a_ ? t.a : t.b;
      const U32 pitch(s == &a_ ? a_pitch() : b_pitch());
      for (u32 u = 0; u < s->units(); ++u, next += 4) {
        const auto [across, depth] = s->spot(u);
        if (!s->along_depth()) {
          to[depth * pitch + across] = kernel::vec(std::span(values).subspan(next, 4));
          continue;
        }
        for (u32 i = 0; i < 4; ++i) to[(depth + U32(i)) * pitch + across] = values[next + i];
      }
    }
  }

  void multiply(const Tiles& t) {
    const u32 rows = tile_.lane_rows, columns = tile_.lane_columns;
    std::vector<Value> sums;
    for (const VarValue& v : sums_) sums.push_back(v.get());
    const auto read = [](const Shared& from, const U32& at, u32 count, u32 apart) {
      std::vector<Value> values;
      for (u32 i = 0; i < count; i += 4) {
        const Value v = from.load(at + U32(i / 4 * apart), 4);
        for (u32 j = 0; j < 4; ++j) values.push_back(kernel::extract(v, j));
      }
      return values;
    };
    for (u32 k = 0; k < tile_.depth; ++k) {
      const auto a = read(t.a, *row_ + U32(k * a_pitch()), rows, 16);
      const auto b = read(t.b, *column_ + U32(k * b_pitch()), columns, 32);
      // In squares, back and forth, so that neighbours share an operand.
      for (u32 x = 0; x < rows * columns; ++x) {
        const u32 square = x / 16, in = x % 16, wide = columns / 4;
        const u32 i = square / wide * 4 + in / 4;
        const u32 j = square % wide * 4 + (i % 2 ? 3 - in % 4 : in % 4);
        Value& sum = sums[i * columns + j];
        sum = c_.multiply_add(a[i], b[j], sum);
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) sums_[i].set(sums[i]);
  }

  void store() {
    const bool rows_end = grid_.rows % tile_.rows() != 0;
    const bool columns_end = c_.columns() % tile_.columns() != 0;
    const bool packs = results_.packs();
    for (u32 i = 0; i < tile_.lane_rows; ++i) {
      const Value row = at_.row + c_.as_index(*row_ + U32(i / 4 * 16 + i % 4));
      const auto of_row = [&] {
        for (u32 j = 0; j < tile_.lane_columns; j += packs ? 4 : 1) {
          const Value column = at_.column + c_.as_index(*column_ + U32(j / 4 * 32 + j % 4));
          const VarValue* sum = &sums_[i * tile_.lane_columns + j];
          const auto one = [&] {
            if (packs) {
              const Value four[] = {sum[0].get(), sum[1].get(), sum[2].get(), sum[3].get()};
              results_.store_pack(at_, at_.base + row, column, four);
            } else {
              results_.store(at_, at_.base + row, column, sum->get());
            }
          };
          guarded(columns_end, column < c_.index(c_.columns()), one);
        }
      };
      guarded(rows_end, row < c_.of_rows(grid_.rows), of_row);
    }
  }

  static void guarded(bool needed, const Value& condition, const std::function<void()>& body) {
    if (needed) {
      kernel::If(kernel::Bool(condition), body);
    } else {
      body();
    }
  }

  ContractNest& c_;
  std::optional<SplitVerdict> verdict_;
  PlainTile tile_;
  Results results_;
  i64 depth_;  // of a slice
  Value first_;
  Grid grid_;
  TileSource a_, b_;
  Grid::Place at_;
  std::optional<U32> row_, column_;  // of this lane's first block
  std::vector<VarValue> sums_;
};

// --- Fragments -----------------------------------------------------------------------------------

class FragmentContract {
 public:
  FragmentContract(ContractNest& c, const FragmentTile& tile, Scalar elem,
                   const DepthSlices& slices, const std::array<std::optional<u32>, 2>& turned = {})
      : c_(c),
        turned_(turned),
        tile_(tile),
        elem_(elem),
        threads_(tile.group_rows * tile.group_columns * c.in().target.subgroup),
        results_(c, slices),
        depth_(slices.depth),
        grid_(c, tile.tile_rows(), tile.tile_columns(), slices.count),
        a_(c, 0, tile.tile_rows(), kSide, 8, threads_),
        b_(c, 1, tile.tile_columns(), kSide, 8, threads_) {
    if (turned_[0]) a_.turn();
    if (turned_[1]) b_.turn();
  }

  // Whether the operands come in packs of 16 bytes, without remainders along k.
  bool fits() const {
    return a_.wide() && b_.wide() && a_.units() > 0 && b_.units() > 0 && c_.depth() % kSide == 0;
  }

  Launch launch() {
    Launch launch = results_.make_launch();
    launch.groups = group_count(c_.in(), grid_.groups());
    launch.choice = fmt::format("{}; 16-bit operands on tensor units, tiles of {} x {}, {} lanes",
                                c_.extents(), tile_.tile_rows(), tile_.tile_columns(), threads_);
    for (const auto& t : turned_) {
      if (t) launch.args.push_back(ArgRef::temporary(*t));
    }
    launch.kernel = kernel::trace("contract_fragments", c_.in().target, threads_, [&] { run(); });
    return launch;
  }

 private:
  struct Tiles {
    Shared a, b;
  };
  struct Fragments {
    std::vector<Value> a, b;
  };

  // Elements from one line of a tile in shared memory to the next: 16 bytes more than it holds, so
  // that neighbouring lines lie in different banks.
  u32 pitch(const TileSource& s) const {
    const u32 across = &s == &a_ ? tile_.tile_rows() : tile_.tile_columns();
    return (s.along_depth() ? kSide : across) + 8;
  }
  u32 tile_words(const TileSource& s) const {
    const u32 across = &s == &a_ ? tile_.tile_rows() : tile_.tile_columns();
    return (s.along_depth() ? across : kSide) * pitch(s) / 2;
  }

  void run() {
    results_.declare();
    at_ = grid_.place(c_);
    std::vector<Tiles> tiles;
    for (u32 i = 0; i < 2; ++i) {
      tiles.push_back({Shared(Scalar::U32, tile_words(a_)), Shared(Scalar::U32, tile_words(b_))});
    }
    const U32 subgroup = kernel::lane() / U32(kernel::subgroup_width());
    row_ = subgroup / U32(tile_.group_columns) * U32(tile_.rows * kSide);
    column_ = subgroup % U32(tile_.group_columns) * U32(tile_.columns * kSide);
    find_sources();
    const kernel::Type sum_type =
        kernel::fragment_type(kernel::FragUse::C, Scalar::F32, kSide, kSide);
    const Value zero = kernel::frag_fill(sum_type, kernel::constant(Scalar::F32, 0));
    for (u32 i = 0; i < tile_.rows * tile_.columns; ++i) sums_.emplace_back(zero);

    // Step t multiplies fragments read in the step before, reads those of t + 1 from shared memory,
    // whose elements arrived during the two steps before.
    steps_ = depth_ / kSide;
    std::vector<VarValue> ahead[2];
    for (auto& set : ahead) {
      for (const Value& v : load_tile(c_.index(&set == ahead ? 0 : 1))) set.emplace_back(v);
    }
    store_tile(tiles[0], ahead[0]);
    set_all(ahead[0], load_tile(c_.index(2)));
    kernel::barrier();
    std::vector<VarValue> current;
    {
      const Fragments f = load_fragments(tiles[0]);
      for (const auto* list : {&f.a, &f.b}) {
        for (const Value& v : *list) current.emplace_back(v);
      }
    }
    const auto taken = [&] {
      Fragments f;
      for (u32 i = 0; i < tile_.rows + tile_.columns; ++i) {
        (i < tile_.rows ? f.a : f.b).push_back(current[i].get());
      }
      return f;
    };
    kernel::For(
        c_.index(0), c_.of_depth(steps_ / 2), c_.index(1),
        [&](const Value& pair) {
          const Value t = pair * c_.index(2);
          std::vector<Value> sums;
          for (const VarValue& v : sums_) sums.push_back(v.get());
          const Fragments even = taken();
          store_tile(tiles[1], ahead[1]);
          set_all(ahead[1], load_tile(t + c_.index(3)));
          kernel::barrier();
          const Fragments odd = load_fragments(tiles[1]);
          multiply(even, sums);
          store_tile(tiles[0], ahead[0]);
          set_all(ahead[0], load_tile(t + c_.index(4)));
          kernel::barrier();
          const Fragments next = load_fragments(tiles[0]);
          multiply(odd, sums);
          for (u32 i = 0; i < tile_.rows; ++i) current[i].set(next.a[i]);
          for (u32 i = 0; i < tile_.columns; ++i) current[tile_.rows + i].set(next.b[i]);
          for (size_t i = 0; i < sums.size(); ++i) sums_[i].set(sums[i]);
        },
        kernel::Unroll::Never);
    if (steps_ % 2 == 1) {
      std::vector<Value> sums;
      for (const VarValue& v : sums_) sums.push_back(v.get());
      multiply(taken(), sums);
      for (size_t i = 0; i < sums.size(); ++i) sums_[i].set(sums[i]);
    }
    store();
  }

  static void set_all(const std::vector<VarValue>& vars, const std::vector<Value>& values) {
    for (size_t i = 0; i < vars.size(); ++i) vars[i].set(values[i]);
  }

  // Each pack's place at k = 0 in words of its memory, and the words from one step to the next.
  struct Source {
    Buffer memory;
    Value first;
    Value per_step;
  };

  void find_sources() {
    sources_.clear();
    for (u32 operand = 0; operand < 2; ++operand) {
      const TileSource& s = operand == 0 ? a_ : b_;
      const Buffer words = turned_[operand] ? kernel::param_buffer(Scalar::U32)
                                            : Buffer(Scalar::U32, c_.memory(s.direct()).address());
      const i64 lines = operand == 0 ? c_.batch_rows() : c_.columns();
      const i64 step = turned_[operand] ? lines : c_.step(s.direct(), Axis::Depth);
      for (u32 u = 0; u < s.units(); ++u) {
        const auto [across, depth] = s.spot(u);
        const Value k = at_.slice * c_.of_depth(depth_) + c_.as_index(depth);
        Value at;
        if (turned_[operand]) {
          const Value line = (operand == 0 ? at_.row : at_.column) + c_.as_index(across);
          const auto of_lines = [&](i64 x) { return operand == 0 ? c_.of_rows(x) : c_.index(x); };
          at = (at_.batch * c_.of_depth(c_.depth()) + k) * of_lines(lines) +
               kernel::min(line, of_lines(lines - 8));
        } else {
          at = c_.position(s.direct(), s.point(at_, c_.as_index(across), k));
        }
        const i64 per_step = step * kSide / 2;
        sources_.push_back(
            {words, at / c_.index(2),
             turned_[operand] && operand == 0 ? c_.of_rows(per_step) : c_.index(per_step)});
      }
    }
  }

  // Past the last step the last one is read again.
  std::vector<Value> load_tile(const Value& step) {
    const Value t = kernel::min(step, c_.of_depth(steps_ - 1));
    std::vector<Value> values;
    for (const Source& s : sources_) {
      values.push_back(s.memory.load_constant(s.first + t * s.per_step, 4));
    }
    return values;
  }

  void store_tile(const Tiles& t, const std::vector<VarValue>& values) {
    size_t next = 0;
    for (const TileSource* s : {&a_, &b_}) {
      const Shared& to = s == &a_ ? t.a : t.b;
      for (u32 u = 0; u < s->units(); ++u) {
        const auto [across, depth] = s->spot(u);
        const U32& line = s->along_depth() ? across : depth;
        const U32& in_line = s->along_depth() ? depth : across;
        to[line * U32(pitch(*s) / 2) + in_line / U32(8) * U32(4)] = values[next++].get();
      }
    }
  }

  Fragments load_fragments(const Tiles& t) {
    Fragments f;
    const U32 a_pitch(pitch(a_)), b_pitch(pitch(b_));
    const auto type = [&](kernel::FragUse use) {
      return kernel::fragment_type(use, elem_, kSide, kSide);
    };
    for (u32 i = 0; i < tile_.rows; ++i) {
      const U32 row = *row_ + U32(i * kSide);
      f.a.push_back(kernel::frag_load(type(kernel::FragUse::A), t.a,
                                      a_.along_depth() ? row * a_pitch : row, a_pitch,
                                      a_.along_depth() ? Layout::RowMajor : Layout::ColMajor));
    }
    for (u32 j = 0; j < tile_.columns; ++j) {
      const U32 column = *column_ + U32(j * kSide);
      f.b.push_back(kernel::frag_load(type(kernel::FragUse::B), t.b,
                                      b_.along_depth() ? column * b_pitch : column, b_pitch,
                                      b_.along_depth() ? Layout::ColMajor : Layout::RowMajor));
    }
    return f;
  }

  void multiply(const Fragments& f, std::vector<Value>& sums) {
    for (u32 i = 0; i < tile_.rows; ++i) {
      for (u32 j = 0; j < tile_.columns; ++j) {
        Value& sum = sums[i * tile_.columns + j];
        sum = kernel::frag_mul_add(f.a[i], f.b[j], sum);
      }
    }
  }

  void store() {
    const bool whole =
        grid_.rows % tile_.tile_rows() == 0 && c_.columns() % tile_.tile_columns() == 0;
    if (whole && results_.plain()) return store_fragments();
    store_staged(results_, at_, tile_, whole, grid_.rows, c_, *row_, *column_, sums_,
                 [](const Value& x, const Value&, const Value&) { return x; });
  }

  void store_fragments() {
    const Buffer& to = results_.memory();
    for (u32 i = 0; i < tile_.rows; ++i) {
      for (u32 j = 0; j < tile_.columns; ++j) {
        const Value row = at_.base + at_.row + c_.as_index(*row_ + U32(i * kSide));
        const Value column = at_.column + c_.as_index(*column_ + U32(j * kSide));
        Value sum = sums_[i * tile_.columns + j].get();
        if (to.elem() != Scalar::F32) sum = kernel::frag_cast(sum, to.elem());
        kernel::frag_store(to, results_.position(at_, row, column), c_.index(c_.columns()),
                           Layout::RowMajor, sum);
      }
    }
  }

  ContractNest& c_;
  std::array<std::optional<u32>, 2> turned_;  // temporaries
  FragmentTile tile_;
  Scalar elem_;
  u32 threads_;
  Results results_;
  i64 depth_;  // of a slice
  Grid grid_;
  TileSource a_, b_;
  Grid::Place at_;
  std::optional<U32> row_, column_;  // of the subgroup in the tile
  i64 steps_ = 0;
  std::vector<Source> sources_;
  std::vector<VarValue> sums_;
};

// Whether what follows the product is worth a kernel of its own. Small devices are spared the
// memory that it goes through, except in tests.
bool has_long_epilogue(const ContractNest& c) {
  constexpr f64 kLong = 12;  // additions per element, about an exponential
  const i64 large = c.in().target.threads >= kSoftwareGroups ? i64{1} << 20 : 1200;
  return c.rows() * c.columns() >= large && cost_per_element(c.in().graph, c.in().group) >= kLong;
}

// Copies of operands that run along k, where the product gains more than that costs.
std::array<std::optional<u32>, 2> turn_operands(ContractNest& c, bool gpu, Launches& out) {
  std::array<std::optional<u32>, 2> turned;
  const f64 all =
      static_cast<f64>(c.rows()) * static_cast<f64>(c.columns()) * static_cast<f64>(c.depth());
  if (gpu && all < 0x1p34) return turned;
  for (u32 operand = 0; operand < 2; ++operand) {
    const i64 lines = operand == 0 ? c.batch_rows() : c.columns();
    const i64 readers = operand == 0 ? c.columns() : c.batch_rows();  // that read each line
    const i64 enough = !gpu ? 48 : operand == 0 ? 4096 : 2048;
    const TileSource source(c, operand, kSide, kSide, 8, 32);
    if (!source.along_depth() || lines % 8 != 0 || readers < enough) continue;
    turned[operand] = lower_turned(c, operand, out);
  }
  return turned;
}

// The element type if both operands are stored 16-bit floats that the device has fragments for.
std::optional<Scalar> fragment_scalar(const ContractNest& c) {
  const kernel::Target& target = c.in().target;
  const auto a = c.direct(0), b = c.direct(1);
  if (!target.fragments || !a || !b || c.accumulator() != kernel::Scalar::F32) return std::nullopt;
  const Scalar elem = c.element(*a);
  if (elem != c.element(*b)) return std::nullopt;
  if (elem == Scalar::F16 || (elem == Scalar::BF16 && target.fragments_bf16)) return elem;
  return std::nullopt;
}

}  // namespace

bool lower_contract_gpu(ContractNest& c, Launches& out) {
  if (c.depth() == 0 || c.accumulator() != kernel::Scalar::F32) return false;
  if (c.batch_rows() < 16 || c.columns() < 16) return false;
  const kernel::Target& target = c.in().target;
  const bool gpu = target.threads >= kSoftwareGroups;
  DepthSlices slices = choose_slices(c);
  const bool long_epilogue = has_long_epilogue(c);
  slices.staged = !slices.several() && long_epilogue;
  const auto add_slices = [&] {
    if (!slices.apart()) return;
    slices.temp = out.add_temp(static_cast<u64>(slices.count * c.rows() * c.columns()) * 4);
  };
  if (const auto elem = fragment_scalar(c)) {
    DepthSlices even = even_slices(c, slices);
    even.staged = !even.several() && long_epilogue;
    if (FragmentContract(c, kSmallFragments, *elem, even).fits()) {
      slices = even;
      add_slices();
      const auto turned = turn_operands(c, gpu, out);
      const auto make = [&](const FragmentTile& t) {
        return FragmentContract(c, t, *elem, slices, turned).launch();
      };
      const FragmentTile tile =
          gpu ? fastest_tile<FragmentTile>(
                    c, "fragments", slices.count,
                    {{2, 4, 4, 4}, {4, 2, 4, 4}, {2, 4, 4, 2}, {2, 2, 4, 4}, {2, 2, 2, 2}},
                    [](const FragmentTile& t) { return t.tile_rows(); },
                    [](const FragmentTile& t) { return t.tile_columns(); }, out.temps, make)
              : FragmentTile{2, 2, 2, 1};
      out.list.push_back(make(tile));
      if (slices.apart()) lower_slice_sums(c, slices, out);
      return true;
    }
  }
  if (c.batch_rows() < 32 || c.columns() < 32) return false;
  add_slices();
  const std::optional<SplitVerdict> verdict = lower_contract_split(c, slices, out);
  const auto make = [&](const PlainTile& t) {
    return PlainContract(c, t, slices, verdict).launch();
  };
  const std::initializer_list<PlainTile> tiles = {
      {8, 8, 4, 2, 8}, {8, 8, 4, 2, 16}, {8, 8, 2, 2, 8}, {8, 8, 2, 1, 8},
      {4, 8, 4, 1, 8}, {4, 4, 4, 2, 16}, {4, 4, 2, 1, 8}, {4, 4, 2, 1, 16}};
  const auto rows = [](const PlainTile& t) { return t.rows(); };
  const auto columns = [](const PlainTile& t) { return t.columns(); };
  PlainTile tile{4, 4, 2, 1, 8};
  if (gpu && verdict) {
    tile = choose_tile(c, slices.count, tiles, rows, columns);  // it hardly ever runs
  } else if (gpu) {
    tile = fastest_tile(c, "plain", slices.count, tiles, rows, columns, out.temps, make);
  }
  out.list.push_back(make(tile));
  if (slices.apart()) lower_slice_sums(c, slices, out);
  return true;
}

}  // namespace oa::graph
