// Products on the CPU: a register tile of some rows and some gangs of C, over operands that are
// packed where reading them as they lie would be slow.
//
// Packed B is [panel][k][columns of the panel], zero past the last column, so that the inner loop
// reads consecutive gangs and needs no mask. Packed A is [band][k][rows of the band], so that the
// rows of a tile share cache lines.
#include <algorithm>

#include "oa/graph/codegen/contract.h"

namespace oa::graph {
namespace {

using kernel::Buffer;
using kernel::Value;

struct Tile {
  u32 rows;
  u32 gangs;  // along n
};

// What a tile gets done of what its instructions could: the share of rows and columns that exist,
// and how well its loads hide behind its multiplications.
f64 efficiency(const Tile& t, i64 rows, i64 columns, u32 width, u32 registers) {
  const u32 per_gang = 1;
  if (t.rows * t.gangs * per_gang + t.gangs + 1 > registers) return 0;
  const i64 wide = t.gangs * width;
  const f64 used =
      static_cast<f64>(rows * columns) /
      static_cast<f64>(ceil_div(rows, t.rows) * t.rows * ceil_div(columns, wide) * wide);
  // Eight independent sums hide the latency of a multiply-add; loads take a slot each.
  const f64 sums = t.rows * t.gangs;
  const f64 latency = std::min(1.0, sums / 8.0);
  const f64 slots = sums / (sums + 0.25 * (t.rows + t.gangs));
  return used * latency * slots;
}

Tile choose_tile(const ContractNest& c) {
  const kernel::Target& target = c.in().target;
  const u32 bytes = kernel::size_bytes(c.accumulator());
  const u32 vectors = std::max(1u, target.width * bytes / target.vector_bytes);
  const u32 registers = target.vector_registers / vectors;
  Tile best{1, 1};
  f64 best_score = 0;
  for (u32 gangs = 1; gangs <= 4; ++gangs) {
    for (u32 rows = 1; rows <= 16; ++rows) {
      const Tile t{rows, gangs};
      const f64 score = efficiency(t, c.rows(), c.columns(), target.width, registers);
      if (score > best_score * 1.001) {
        best = t;
        best_score = score;
      }
    }
  }
  return best;
}

class TiledContract {
 public:
  TiledContract(ContractNest& c, Tile tile) : c_(c), tile_(tile) {
    const u32 width = c.in().target.width;
    columns_per_panel_ = static_cast<i64>(tile.gangs) * width;
    panels_ = ceil_div(c.columns(), columns_per_panel_);
    bands_ = ceil_div(c.rows(), tile.rows);
    const auto n_stride = c.stride(1, ContractNest::Axis::Column);
    const auto k_stride = c.stride(1, ContractNest::Axis::Depth);
    const auto a_stride = c.stride(0, ContractNest::Axis::Depth);
    const bool ragged = c.columns() % columns_per_panel_ != 0;
    // Rows of B far apart cost a page each: worth a copy once several bands read them.
    const bool far = k_stride && std::abs(*k_stride) > 1024 && bands_ >= 8 && c.depth() >= 64;
    pack_b_ = n_stride != 1 || ragged || far;
    // Rows of A are read as they lie: k beside k, or rows of a band side by side. Only where every
    // step of k is a page of its own, and the pages are too many to remember, a copy pays.
    const i64 a_bytes = c.rows() * c.depth() * kernel::size_bytes(c.accumulator());
    pack_a_ = a_stride != 1 && a_bytes > (8 << 20);
  }

  void lower(Launches& out) {
    std::vector<ArgRef> packed;
    if (pack_b_) packed.push_back(ArgRef::temporary(pack(out, 1)));
    if (pack_a_) packed.push_back(ArgRef::temporary(pack(out, 0)));
    // A workgroup takes one panel and so many bands that it runs for some ten microseconds.
    const f64 band_flops = 2.0 * tile_.rows * static_cast<f64>(columns_per_panel_ * c_.depth());
    i64 bands = std::clamp<i64>(static_cast<i64>(1e6 / std::max(band_flops, 1.0)), 1, bands_);
    const i64 wanted = 8 * c_.in().target.threads;
    while (bands > 1 && panels_ * ceil_div(bands_, bands) < wanted) bands = (bands + 1) / 2;
    const i64 blocks = ceil_div(bands_, bands);

    Launch launch = c_.make_launch();
    for (const ArgRef& a : packed) launch.args.push_back(a);
    launch.groups = group_count(c_.in(), panels_ * blocks);
    launch.kernel = kernel::trace("contract_tiles", c_.in().target, c_.in().target.width, [&] {
      c_.declare();
      std::optional<Buffer> b, a;
      if (pack_b_) b = kernel::param_buffer(c_.accumulator());
      if (pack_a_) a = kernel::param_buffer(c_.accumulator());
      const Value group = c_.as_index(kernel::group());
      const Value panel = group / c_.index(blocks);
      const Value first = group % c_.index(blocks) * c_.index(bands);
      const Value last = bands_ % bands == 0
                             ? first + c_.index(bands)
                             : kernel::min(first + c_.index(bands), c_.index(bands_));
      kernel::For(first, last, c_.index(1),
                  [&](const Value& band) { run_tile(band, panel, a, b); });
    });
    out.list.push_back(std::move(launch));
  }

 private:
  u32 width() const { return c_.in().target.width; }

  // The rows of a band; a row past the end repeats the last one.
  Value row(const Value& band, u32 i) const {
    const Value r = band * c_.index(tile_.rows) + c_.index(i);
    return c_.rows() % tile_.rows == 0 ? r : kernel::min(r, c_.index(c_.rows() - 1));
  }
  Value column(const Value& panel, u32 gang) const {
    return panel * c_.index(columns_per_panel_) + c_.index(gang * width()) +
           c_.as_index(kernel::lane());
  }

  void run_tile(const Value& band, const Value& panel, const std::optional<Buffer>& a,
                const std::optional<Buffer>& b) {
    std::vector<std::vector<kernel::VarValue>> sums(tile_.rows);
    for (auto& of_row : sums) {
      for (u32 j = 0; j < tile_.gangs; ++j)
        of_row.emplace_back(kernel::literal(c_.accumulator(), 0));
    }
    std::vector<Value> rows;
    for (u32 i = 0; i < tile_.rows; ++i) rows.push_back(row(band, i));
    const Value lane = c_.as_index(kernel::lane());
    const Value a_base = band * c_.index(c_.depth() * tile_.rows);
    const Value b_base = panel * c_.index(c_.depth() * columns_per_panel_);
    kernel::For(c_.index(0), c_.index(c_.depth()), c_.index(1), [&](const Value& k) {
      std::vector<Value> right;
      for (u32 j = 0; j < tile_.gangs; ++j) {
        if (b) {
          right.push_back(
              b->load(b_base + k * c_.index(columns_per_panel_) + c_.index(j * width()) + lane));
        } else {
          Point p = c_.point(rows[0], column(panel, j), k);
          right.push_back(c_.operand(1, p));
        }
      }
      for (u32 i = 0; i < tile_.rows; ++i) {
        Value left;
        if (a) {
          left = a->load(a_base + k * c_.index(tile_.rows) + c_.index(i));
        } else {
          Point p = c_.point(rows[i], column(panel, 0), k);
          left = c_.operand(0, p);
        }
        for (u32 j = 0; j < tile_.gangs; ++j) {
          sums[i][j].set(c_.multiply_add(left, right[j], sums[i][j].get()));
        }
      }
    });
    for (u32 j = 0; j < tile_.gangs; ++j) {
      const Value n = column(panel, j);
      const auto store = [&] {
        for (u32 i = 0; i < tile_.rows; ++i) {
          Point p = c_.point(rows[i], n, c_.index(0));
          c_.store(p, sums[i][j].get());
        }
      };
      if (c_.columns() % columns_per_panel_ == 0) {
        store();
      } else {
        kernel::If(kernel::Bool(n < c_.index(c_.columns())), store);
      }
    }
  }

  // Copies operand `i` into panels (B) or bands (A); the temporary's number.
  u32 pack(Launches& out, u32 i) {
    const i64 across = i == 0 ? tile_.rows : columns_per_panel_;  // consecutive in the copy
    const i64 count = i == 0 ? bands_ : panels_;
    const i64 extent = i == 0 ? c_.rows() : c_.columns();
    const i64 depth = c_.depth();
    const u32 temp = out.add_temp(static_cast<u64>(count * across * depth) *
                                  kernel::size_bytes(c_.accumulator()));
    // Lanes run along what is consecutive in the operand's memory if that is k, else in the copy. A
    // workgroup takes a block of k of some neighbouring parts, small enough for the nearest cache.
    const bool along_k = c_.stride(i, ContractNest::Axis::Depth) == 1;
    const i64 block = along_k ? 64 : 16;
    const i64 blocks = ceil_div(depth, block);
    const i64 parts = std::clamp<i64>(8192 / (across * block), 1, count);
    Launch launch = c_.make_launch();
    launch.label = i == 0 ? "pack a" : "pack b";
    launch.flops = 4.0 * static_cast<f64>(count * across * depth);
    // The outputs' parameters are declared too; a pack writes only its temporary.
    for (ArgRef& arg : launch.args) arg.write = false;
    launch.args.push_back(ArgRef::temporary(temp, true));
    launch.groups = group_count(c_.in(), ceil_div(count, parts) * blocks);
    launch.kernel = kernel::trace("contract_pack", c_.in().target, width(), [&] {
      c_.declare();
      const Buffer to = kernel::param_buffer(c_.accumulator());
      const Value group = c_.as_index(kernel::group());
      const Value lane = c_.as_index(kernel::lane());
      const auto range = [&](const Value& number, i64 size, i64 limit) {
        const Value begin = number * c_.index(size);
        const Value end = limit % size == 0 ? begin + c_.index(size)
                                            : kernel::min(begin + c_.index(size), c_.index(limit));
        return std::pair(begin, end);
      };
      const auto [k_begin, k_end] = range(group % c_.index(blocks), block, depth);
      const auto [part_begin, part_end] = range(group / c_.index(blocks), parts, count);
      kernel::For(part_begin, part_end, c_.index(1), [&](const Value& part) {
        const Value first = part * c_.index(across);
        const auto read = [&](const Value& at, const Value& k) {
          Point p = i == 0 ? c_.point(at, c_.index(0), k) : c_.point(c_.index(0), at, k);
          return c_.operand(i, p);
        };
        const auto write = [&](const Value& x, const Value& k, const Value& v) {
          to.store((part * c_.index(depth) + k) * c_.index(across) + x, v);
        };
        const Value last = c_.index(extent - 1);
        // Past the end of the operand the last row is repeated, and columns are 0.
        const auto fill = [&](const Value& k) {
          return i == 0 ? read(last, k) : kernel::literal(c_.accumulator(), 0);
        };
        const bool ragged = extent % across != 0;
        if (along_k) {
          const auto gang = [&](const Value& x, const Value& k) {
            Value v = read(ragged ? kernel::min(first + x, last) : first + x, k);
            if (ragged && i == 1) v = kernel::select(first + x <= last, v, fill(k));
            write(x, k, v);
          };
          kernel::For(c_.index(0), c_.index(across), c_.index(1), [&](const Value& x) {
            if (depth % block == 0) {
              for (i64 g = 0; g < block; g += width()) gang(x, k_begin + c_.index(g) + lane);
            } else {
              kernel::For(k_begin + lane, k_end, c_.index(width()),
                          [&](const Value& k) { gang(x, k); });
            }
          });
        } else {
          const Value here =
              ragged ? kernel::min(c_.index(across), c_.index(extent) - first) : c_.index(across);
          kernel::For(k_begin, k_end, c_.index(1), [&](const Value& k) {
            kernel::For(lane, here, c_.index(width()),
                        [&](const Value& x) { write(x, k, read(first + x, k)); });
            if (ragged) {
              kernel::For(here + lane, c_.index(across), c_.index(width()),
                          [&](const Value& x) { write(x, k, fill(k)); });
            }
          });
        }
      });
    });
    out.list.push_back(std::move(launch));
    return temp;
  }

  ContractNest& c_;
  Tile tile_;
  i64 columns_per_panel_ = 0, panels_ = 0, bands_ = 0;
  bool pack_a_ = false, pack_b_ = false;
};

}  // namespace

bool lower_contract_cpu(ContractNest& c, Launches& out) {
  // Batches share neither panels nor bands; they and tiny products go the general way.
  if (c.in().group.domain.rank() != 2 || c.depth() == 0) return false;
  if (c.rows() * c.columns() * c.depth() < 4096) return false;
  TiledContract(c, choose_tile(c)).lower(out);
  return true;
}

}  // namespace oa::graph
