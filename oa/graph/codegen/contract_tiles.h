// What the kernels of products on a GPU share: the tiles of C, and reading a tile of an operand.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "oa/graph/codegen/contract.h"

namespace oa::graph {

inline constexpr u32 kFragmentSide = 16;
inline constexpr i64 kSwizzle = 8;  // tile rows side by side, so that B is read from the cache
// Fewer workgroups than this fill a device that is no GPU.
inline constexpr u32 kSoftwareGroups = 64;

// Sums over k in slices, for products with too few results to fill a device: every slice stores
// its sums in a temporary, and a last kernel adds them in order. How many there are is a rule of
// the sizes alone, so that results have the same bits on every device. The sums are kept apart,
// too, where what follows the product is long: few lanes of a product's kernel run side by side.
struct DepthSlices {
  i64 count = 1;
  i64 depth = 0;  // of k in a slice, a multiple of kSliceUnit where there are several
  bool staged = false;
  u32 temp = 0;  // [count][rows][columns], f32
  bool several() const { return count > 1; }
  bool apart() const { return several() || staged; }
};
inline constexpr i64 kSliceUnit = 64;

DepthSlices choose_slices(const ContractNest& c);
// The same number or somewhat fewer, all of them equally long; one if there is no such number.
DepthSlices even_slices(const ContractNest& c, const DepthSlices& slices);
// The last kernel.
void lower_slice_sums(ContractNest& c, const DepthSlices& slices, Launches& out);

// The tiles of C and which of them a workgroup computes.
struct Grid {
  Grid(const ContractNest& c, i64 tile_rows, i64 tile_columns, i64 depth_slices = 1)
      : rows(c.batch_rows()),
        batches(c.rows() / rows),
        tiles_m(ceil_div(rows, tile_rows)),
        tiles_n(ceil_div(c.columns(), tile_columns)),
        tile_m(tile_rows),
        tile_n(tile_columns),
        slices(depth_slices) {}

  i64 tiles() const { return batches * tiles_m * tiles_n; }
  i64 groups() const { return tiles() * slices; }

  struct Place {
    kernel::Value slice;
    kernel::Value batch;
    kernel::Value base;    // first row of the batch
    kernel::Value row;     // first row within the batch
    kernel::Value column;  // first column
  };
  Place place(const ContractNest& c) const { return place(c, kernel::group()); }
  Place place(const ContractNest& c, const kernel::Value& group) const {
    kernel::Value g = c.as_index(group);
    kernel::Value slice = c.index(0), batch = c.index(0);
    if (slices > 1) {
      slice = g / c.of_rows(tiles());
      g = g % c.of_rows(tiles());
    }
    if (batches > 1) {
      batch = g / c.index(tiles_m * tiles_n);
      g = g % c.index(tiles_m * tiles_n);
    }
    const kernel::Value band = g / c.index(kSwizzle * tiles_n),
                        in_band = g % c.index(kSwizzle * tiles_n);
    const kernel::Value first = band * c.index(kSwizzle);
    const kernel::Value height = tiles_m % kSwizzle == 0
                                     ? c.index(kSwizzle)
                                     : kernel::min(c.index(kSwizzle), c.of_rows(tiles_m) - first);
    return {slice, batch, batch * c.index(rows), (first + in_band % height) * c.index(tile_m),
            in_band / height * c.index(tile_n)};
  }

  i64 rows, batches, tiles_m, tiles_n, tile_m, tile_n, slices;
};

// One operand's tile: `across` rows of A or columns of B by `depth` along k, read in packs of
// `lanes` elements along one of the two.
class TileSource {
 public:
  // `end`: k up to which packs are read; past that of the operand they are zeros.
  TileSource(ContractNest& c, u32 operand, i64 across, i64 depth, u32 lanes, u32 threads,
             i64 end = 0)
      : c_(c),
        operand_(operand),
        across_(across),
        depth_(depth),
        lanes_(lanes),
        ragged_(std::max(end, c.depth()) != c.depth() || c.depth() % depth != 0) {
    using Axis = ContractNest::Axis;
    const Axis other = operand == 0 ? Axis::Row : Axis::Column;
    direct_ = c.direct(operand);
    if (direct_ && c.is_pack(*direct_, other, lanes)) {
      wide_ = true;
    } else if (direct_ && c.is_pack(*direct_, Axis::Depth, lanes)) {
      wide_ = along_depth_ = true;
    } else {
      along_depth_ = !direct_ || c.step(*direct_, other) != 1;
    }
    units_ = static_cast<u32>(across * depth / lanes / threads);
    extent_ = operand == 0 ? c.batch_rows() : c.columns();
  }

  u32 units() const { return units_; }  // packs that each lane reads
  bool wide() const { return wide_; }
  bool along_depth() const { return along_depth_; }
  // Reads a turned copy instead (contract_turn.h).
  void turn() { along_depth_ = false; }
  const ContractNest::Direct& direct() const { return *direct_; }

  // Where pack `u` of this lane lies in the tile.
  struct Spot {
    kernel::U32 across, depth;
  };
  Spot spot(u32 u) const {
    const kernel::U32 id = kernel::lane() + kernel::U32(u * kernel::width());
    const u32 per_row = static_cast<u32>((along_depth_ ? depth_ : across_) / lanes_);
    const kernel::U32 major = id / kernel::U32(per_row),
                      minor = id % kernel::U32(per_row) * kernel::U32(lanes_);
    return along_depth_ ? Spot{major, minor} : Spot{minor, major};
  }

  // The point of a spot in C's loops; past the end the last row or column is read again.
  Point point(const Grid::Place& at, const kernel::Value& across, const kernel::Value& k) const {
    const i64 step = wide_ && !along_depth_ ? lanes_ : 1;
    kernel::Value x = (operand_ == 0 ? at.row : at.column) + across;
    if (extent_ % across_ != 0) x = kernel::min(x, of_extent(extent_ - step));
    return operand_ == 0 ? c_.point(at.base + x, at.column, k) : c_.point(at.base, x, k);
  }

  // The elements of a spot, for tiles whose first depth is k; packs of 4, zeros past the end of k.
  std::vector<kernel::Value> pack(const Grid::Place& at, const Spot& spot,
                                  const kernel::Value& first) const {
    const auto inside = [&](const kernel::Value& k, const kernel::Value& v) {
      if (!ragged_) return v;
      return kernel::select(k < c_.of_depth(c_.depth()), v,
                            kernel::constant(kernel::Scalar::F32, 0));
    };
    const auto within = [&](const kernel::Value& x, i64 count) {
      return ragged_ ? kernel::min(x, c_.of_depth(c_.depth() - count)) : x;
    };
    const kernel::Value k = first + c_.as_index(spot.depth);
    const kernel::Value across = c_.as_index(spot.across);
    std::vector<kernel::Value> values;
    if (wide_) {
      const Point p = point(at, across, within(k, along_depth_ ? lanes_ : 1));
      // No product writes where it reads.
      const kernel::Value wide =
          c_.memory(*direct_).load_constant(c_.position(*direct_, p), lanes_);
      for (u32 i = 0; i < lanes_; ++i) values.push_back(inside(k, kernel::extract(wide, i)));
      return values;
    }
    for (u32 i = 0; i < lanes_; ++i) {
      const kernel::Value ki = along_depth_ ? k + c_.index(i) : k;
      Point p = point(at, along_depth_ ? across : across + c_.index(i), within(ki, 1));
      values.push_back(inside(ki, c_.operand(operand_, p)));
    }
    return values;
  }

 private:
  kernel::Value of_extent(i64 x) const { return operand_ == 0 ? c_.of_rows(x) : c_.index(x); }

  ContractNest& c_;
  u32 operand_;
  i64 across_, depth_, extent_ = 0;
  u32 lanes_, units_ = 0;
  std::optional<ContractNest::Direct> direct_;
  bool ragged_, wide_ = false, along_depth_ = false;
};

// Where a kernel's results go: to the outputs through the epilogue, or to the sums of its slice.
class Results {
 public:
  Results(ContractNest& c, const DepthSlices& slices) : c_(c), slices_(slices) {}

  Launch make_launch() const {
    Launch launch = c_.make_launch(!slices_.apart());
    if (slices_.apart()) launch.args.push_back(ArgRef::temporary(slices_.temp, true));
    return launch;
  }
  void declare() {
    c_.declare(!slices_.apart());
    if (slices_.apart()) sums_.emplace(kernel::param_buffer(kernel::Scalar::F32));
  }
  // Whether products are stored as they are, row after row, to memory().
  bool plain() const { return slices_.apart() || c_.stores_product(); }
  const kernel::Buffer& memory() const { return sums_ ? *sums_ : c_.output(); }
  // Position there; the row counts from the first of all batches.
  kernel::Value position(const Grid::Place& at, const kernel::Value& row,
                         const kernel::Value& column) const {
    const kernel::Value from =
        slices_.several() ? at.slice * c_.of_rows(c_.rows()) + row : kernel::Value(row);
    return from * c_.index(c_.columns()) + column;
  }
  // Whether 4 neighbouring columns, from a multiple of 4 on, can be stored together.
  bool packs() const { return plain() ? c_.columns() % 4 == 0 : c_.packs(); }
  void store_pack(const Grid::Place& at, const kernel::Value& row, const kernel::Value& column,
                  std::span<const kernel::Value> products) const {
    if (plain()) {
      memory().store(position(at, row, column), kernel::vec(products));
    } else {
      c_.store_pack(row, column, products);
    }
  }
  void store(const Grid::Place& at, const kernel::Value& row, const kernel::Value& column,
             const kernel::Value& product) const {
    if (slices_.apart()) {
      sums_->store(position(at, row, column), product);
    } else {
      Point p = c_.point(row, column, c_.index(0));
      c_.store(p, product);
    }
  }

 private:
  ContractNest& c_;
  DepthSlices slices_;
  std::optional<kernel::Buffer> sums_;
};

// A rectangle of C in fragments, by subgroups.
struct FragmentTile {
  u32 group_rows, group_columns;  // subgroups
  u32 rows, columns;              // fragments per subgroup

  u32 tile_rows() const { return group_rows * rows * kFragmentSide; }
  u32 tile_columns() const { return group_columns * columns * kFragmentSide; }
};

// Stores a workgroup's sums fragment by fragment through workgroup memory, where each lane finds
// its elements. `row` and `column`: of the subgroup in the tile; `scale` gets an element with its
// row and column within the batch.
template <class Scale>
void store_staged(const Results& results, const Grid::Place& at, const FragmentTile& tile,
                  bool whole, i64 rows, const ContractNest& c, const kernel::U32& row,
                  const kernel::U32& column, const std::vector<kernel::VarValue>& sums,
                  const Scale& scale) {
  using kernel::U32;
  using kernel::Value;
  constexpr u32 kSide = kFragmentSide;
  const u32 lanes = kernel::subgroup_width();
  const u32 pack = results.packs() ? 4 : 1;
  const kernel::Shared stage(kernel::Scalar::F32,
                             tile.group_rows * tile.group_columns * kSide * kSide);
  const U32 mine = kernel::lane() / U32(lanes) * U32(kSide * kSide);
  const U32 in_group = kernel::lane() % U32(lanes);
  for (u32 i = 0; i < tile.rows; ++i) {
    for (u32 j = 0; j < tile.columns; ++j) {
      kernel::frag_store(stage, mine, U32(kSide), kernel::Layout::RowMajor,
                         sums[i * tile.columns + j].get());
      kernel::barrier();
      kernel::For(U32(0), U32(kSide * kSide), U32(lanes * pack), [&](U32 first) {
        const U32 e = first + in_group * U32(pack);
        const Value r = at.row + c.as_index(row + U32(i * kSide) + e / U32(kSide));
        const Value n = at.column + c.as_index(column + U32(j * kSide) + e % U32(kSide));
        const auto body = [&] {
          if (pack == 1) {
            results.store(at, at.base + r, n, scale(stage.load(mine + e), r, n));
            return;
          }
          const Value wide = stage.load(mine + e, pack);
          std::vector<Value> four;
          for (u32 k = 0; k < pack; ++k) {
            four.push_back(scale(kernel::extract(wide, k), r, n + c.index(k)));
          }
          results.store_pack(at, at.base + r, n, four);
        };
        if (whole) {
          body();
        } else {
          kernel::If(kernel::Bool((r < c.index(rows)) & (n < c.index(c.columns()))), body);
        }
      });
      kernel::barrier();
    }
  }
}

// The largest tile whose workgroups fill the device, else the smallest.
template <class Tile, class Rows, class Columns>
Tile choose_tile(const ContractNest& c, i64 slices, std::initializer_list<Tile> tiles, Rows rows,
                 Columns columns) {
  const i64 processors = c.in().target.threads / 8;
  for (const Tile& t : tiles) {
    if (Grid(c, rows(t), columns(t), slices).groups() >= processors) return t;
  }
  return *(tiles.end() - 1);
}

// The same by measuring the launches that `make` makes of the tiles, where the device can; small
// products go by the rule.
template <class Tile, class Rows, class Columns, class Make>
Tile fastest_tile(const ContractNest& c, std::string_view what, i64 slices,
                  std::initializer_list<Tile> tiles, Rows rows, Columns columns,
                  std::span<const Temp> temps, const Make& make) {
  constexpr f64 kWorthTrying = 0x1p27;  // multiply-adds
  const f64 work =
      static_cast<f64>(c.rows()) * static_cast<f64>(c.columns()) * static_cast<f64>(c.depth());
  if (c.in().trials == nullptr || c.in().target.threads < kSoftwareGroups || work < kWorthTrying) {
    return choose_tile(c, slices, tiles, rows, columns);
  }
  std::vector<std::function<Launch()>> candidates;
  for (const Tile& t : tiles) candidates.emplace_back([&make, &t] { return make(t); });
  return tiles.begin()[c.in().trials->fastest(c.trial_key(what, slices), temps, candidates)];
}

}  // namespace oa::graph
