// Products on the CPU: a register tile of some rows and some gangs of C, over operands that are
// packed where reading them as they lie would be slow.
//
// An operand is packed by the workgroup that needs it, into its own memory, where that costs little
// beside the product: small matrices of a batch, and rows of A that are computed on the way (casts,
// scalings, masks). Else a launch packs it for all: B as [panel][k][columns of the panel], A as
// [band][k][rows of the band]. A panel is the columns of a tile, a band its rows. Packed columns
// past the last one are 0, so the inner loop needs no mask.
//
// Where a product has few tiles and a long sum, the sum is cut into slices that depend on nothing
// but the shape; a second launch adds them in order.
#include "oa/graph/codegen/contract_cpu.h"

#include <algorithm>
#include <bit>

namespace oa::graph {
namespace {

using kernel::Buffer;
using kernel::Value;
using Axis = ContractNest::Axis;

// What a tile gets done of what its instructions could: the share of rows and columns that exist,
// and how well its loads hide behind its multiplications.
f64 efficiency(const CpuTiling& t, i64 rows, i64 columns, u32 registers) {
  if (t.rows * t.gangs + t.gangs + 1 > registers) return 0;
  const i64 wide = t.panel_columns();
  const f64 used =
      static_cast<f64>(rows * columns) /
      static_cast<f64>(ceil_div(rows, t.rows) * t.rows * ceil_div(columns, wide) * wide);
  // Eight independent sums hide the latency of a multiply-add; loads take a slot each.
  const f64 sums = t.rows * t.gangs;
  const f64 latency = std::min(1.0, sums / 8.0);
  const f64 slots = sums / (sums + 0.25 * (t.rows + t.gangs));
  return used * latency * slots;
}

void choose_tile(const ContractNest& c, CpuTiling& best) {
  const kernel::Target& target = c.in().target;
  const u32 bytes = kernel::size_bytes(c.accumulator());
  f64 best_score = 0;
  for (u32 width = target.width; width >= 4; width /= 2) {
    const u32 vectors = std::max(1u, width * bytes / target.vector_bytes);
    // Half a vector may cost as much as a whole one; the fewer lanes, the more instructions.
    f64 worth = width == target.width ? 1.0 : 0.95;
    if (width * bytes < target.vector_bytes) {
      worth = width * bytes * 2 >= target.vector_bytes ? 0.85 : 0.45;
    }
    if (!c.is_straight(Axis::Column, width)) worth *= 0.4;
    // One or two rows read long stretches of B, as long as there are tiles for many threads.
    const u32 most_gangs = c.shared_rows() <= 2 && c.columns() >= 64 * width ? 8 : 4;
    for (u32 gangs = 1; gangs <= most_gangs; ++gangs) {
      for (u32 rows = 1; rows <= 16; ++rows) {
        CpuTiling t = best;
        t.width = width;
        t.rows = rows;
        t.gangs = gangs;
        const f64 score =
            worth * efficiency(t, c.shared_rows(), c.columns(), target.vector_registers / vectors);
        if (score > best_score * 1.001) {
          best = t;
          best_score = score;
        }
      }
    }
  }
}

// Bytes that a workgroup may fill with an operand: some of the second cache.
i64 task_bytes(const ContractNest& c, u32 operand) {
  return std::min<i64>(operand == 0 ? 64 << 10 : 128 << 10, c.in().target.shared_bytes / 2);
}

i64 round_up(i64 x, i64 to) { return ceil_div(x, to) * to; }

// Slices of the sum, by the shape alone: where there are few tiles; and where the slices' sums are
// few beside the operands, as in the gradients of weights. There a slice is read by the thread that
// wrote its rows. Without, every thread reads all rows, and a line that two cores have read is slow
// to write again in the next step (7 to 28 ns each).
i64 slice_count(const ContractNest& c, i64 tiles, f64 flops) {
  const i64 depth = c.depth(), outer = c.outer_depth();
  i64 slices = 1;
  if (tiles < 16) {
    slices = std::min({ceil_div(16, tiles), static_cast<i64>(flops / 3e5), depth / 128, outer});
  }
  if (c.batches() == 1 && depth >= 2 * std::max(c.rows(), c.columns())) {
    const i64 read = (c.rows() + c.columns()) * depth, sums = c.rows() * c.columns();
    i64 more = 8;
    while (more > 1 && (more > outer || more * 128 > depth || 4 * more * sums > read)) more /= 2;
    slices = std::max(slices, more);
  }
  return std::max<i64>(slices, 1);
}

CpuTiling make_tiling(const ContractNest& c) {
  CpuTiling t;
  choose_tile(c, t);
  t.panels = ceil_div(c.columns(), t.panel_columns());
  t.bands = ceil_div(c.shared_rows(), t.rows);
  const i64 depth = c.depth(), element = kernel::size_bytes(c.accumulator());
  const f64 flops = 2.0 * static_cast<f64>(c.rows()) * static_cast<f64>(c.columns() * depth);
  const auto a = c.direct(0), b = c.direct(1);
  const auto narrow = [&](const ContractNest::Direct& d) {
    return kernel::size_bytes(c.element(d)) < element;
  };
  t.b_stride =
      round_up(c.columns(), t.panel_columns()) + t.width;  // rows begin in other cache sets
  {
    const bool ragged = c.columns() % t.panel_columns() != 0;
    bool pack =
        !b || ragged || c.step(*b, Axis::Column) != 1 || !c.is_straight(Axis::Column, t.width);
    t.why_b = !pack                           ? "its rows lie as tiles read them"
              : !b                            ? "it is computed on the way"
              : c.step(*b, Axis::Column) != 1 ? "its columns do not lie side by side"
              : ragged                        ? "its last panel is not full"
                                              : "its columns run over several axes";
    // Rows of B far apart cost a page each: worth a copy once several bands read them.
    if (!pack && t.bands >= 8 && depth >= 64 && std::abs(c.step(*b, Axis::Depth)) > 1024) {
      pack = true;
      t.why_b = "its rows lie pages apart";
    }
    if (!pack && t.bands >= 4 && narrow(*b)) {
      pack = true;
      t.why_b = "its elements are widened once";
    }
    const bool small = c.batches() > 1 || flops < 3e5;
    if (pack) {
      t.b = small && depth * t.b_stride * element <= task_bytes(c, 1) ? Site::Task : Site::Launch;
    }
  }
  {
    // Rows of A are read as they lie: k beside k, or rows of a band side by side. Only where every
    // step of k is a page of its own, and the pages are too many to remember, a copy pays.
    const i64 bytes = c.rows() * depth * element;
    const bool far = a && c.step(*a, Axis::Depth) != 1 && bytes > (8 << 20);
    t.why_a = !a           ? "it is computed on the way"
              : far        ? "every step of k is a page of its own"
              : narrow(*a) ? "its elements are widened once"
                           : "a tile reads single elements of it";
    if (!a || narrow(*a) || far) {
      const bool fits = round_up(t.rows, t.width) * depth * element <= task_bytes(c, 0);
      t.a = fits && !far ? Site::Task : Site::Launch;
    }
  }
  // A workgroup runs for some ten microseconds, and there are several for every thread.
  t.task_panels = t.a == Site::Task || t.b == Site::Task ? t.panels : 1;
  const f64 band_flops = 2.0 * t.rows * static_cast<f64>(t.task_panels * t.panel_columns() * depth);
  t.task_bands = std::clamp<i64>(static_cast<i64>(1e6 / std::max(band_flops, 1.0)), 1, t.bands);
  if (t.b == Site::Task) {
    // Every workgroup of a batch packs B again.
    t.task_bands = std::clamp(std::max(t.task_bands, ceil_div(128, t.rows)), i64{1}, t.bands);
  }
  const i64 fewest = t.b == Site::Task   ? std::min(t.bands, ceil_div(64, t.rows))
                     : t.a == Site::Task ? std::min(t.bands, ceil_div(t.width, t.rows))
                                         : 1;
  const i64 wanted = 8 * c.in().target.threads;
  const auto tasks = [&] {
    return c.batches() * t.panels / t.task_panels * ceil_div(t.bands, t.task_bands);
  };
  while (t.task_bands > fewest && tasks() < wanted) t.task_bands = (t.task_bands + 1) / 2;
  if (t.a == Site::Task) {
    const auto bytes = [&] { return round_up(t.task_bands * t.rows, t.width) * depth * element; };
    while (t.task_bands > 1 && bytes() > task_bytes(c, 0)) t.task_bands = (t.task_bands + 1) / 2;
  }
  t.blocks = ceil_div(t.bands, t.task_bands);
  if (t.a != Site::Task) {
    // As many for each thread: rows then stay with the thread that has them in other kernels.
    const i64 threads = c.in().target.threads;
    if (t.blocks > threads) t.blocks = std::min(round_up(t.blocks, threads), t.bands);
    t.task_bands = ceil_div(t.bands, t.blocks);
  }
  t.a_stride = round_up(t.task_bands * t.rows, t.width);
  t.slices = slice_count(c, c.batches() * t.panels * t.bands, flops);
  return t;
}

class TiledContract {
 public:
  TiledContract(ContractNest& c, const CpuTiling& tiling) : c_(c), t_(tiling) {}

  void lower(Launches& out) {
    std::vector<ArgRef> packed;
    if (t_.b == Site::Launch) packed.push_back(ArgRef::temporary(pack_contract(c_, t_, 1, out)));
    if (t_.a == Site::Launch) packed.push_back(ArgRef::temporary(pack_contract(c_, t_, 0, out)));
    const i64 panel_groups = t_.panels / t_.task_panels;

    Launch launch = c_.make_launch();
    launch.choice = fmt::format("{}; tiles of {} x {} in registers; {}; {}", c_.extents(), t_.rows,
                                t_.panel_columns(), describe("A", t_.a, t_.why_a),
                                describe("B", t_.b, t_.why_b));
    if (t_.slices > 1) {
      launch.choice += fmt::format("; few tiles, so the sum runs in {} slices", t_.slices);
    }
    for (const ArgRef& a : packed) launch.args.push_back(a);
    u32 partial = 0;
    if (t_.slices > 1) {
      partial = out.add_temp(static_cast<u64>(t_.slices * c_.rows() * partial_columns()) *
                             kernel::size_bytes(c_.accumulator()));
      launch.label += " (slices)";
      for (ArgRef& arg : launch.args) arg.write = false;
      launch.args.push_back(ArgRef::temporary(partial, true));
    }
    launch.groups = group_count(c_.in(), t_.slices * c_.batches() * panel_groups * t_.blocks);
    launch.kernel = kernel::trace("contract_tiles", c_.in().target, t_.width, [&] {
      c_.declare();
      b_ = a_ = partial_ = std::nullopt;
      if (t_.b == Site::Launch) b_ = kernel::param_buffer(c_.accumulator());
      if (t_.a == Site::Launch) a_ = kernel::param_buffer(c_.accumulator());
      if (t_.slices > 1) partial_ = kernel::param_buffer(c_.accumulator());
      Value group = c_.as_index(kernel::group());
      const auto take_of = [&](i64 count, const Value& divisor) {
        if (count == 1) return c_.index(0);
        const Value v = group % divisor;
        group = group / divisor;
        return v;
      };
      const auto take = [&](i64 count) { return take_of(count, c_.index(count)); };
      const auto take_block = [&] { return take_of(t_.blocks, c_.of_rows(t_.blocks)); };
      // A small B stays in every cache; then a thread's workgroups are neighbours in rows, which it
      // likely wrote and will read. Else they share a panel of B.
      const i64 b_bytes = c_.columns() * c_.depth() * kernel::size_bytes(c_.accumulator());
      const bool by_row = b_bytes <= 256 << 10;
      Value block = by_row ? Value() : take_block();
      const Value panel = take(panel_groups);
      if (by_row) block = take_block();
      const Value batch = take_of(c_.batches(), c_.of_batches(c_.batches()));
      run_task(batch, panel, block, take(t_.slices));
    });
    out.list.push_back(std::move(launch));
    if (t_.slices > 1) add_slices(out, partial);
  }

 private:
  i64 partial_columns() const { return t_.panels * t_.panel_columns(); }

  void run_task(const Value& batch, const Value& panel_group, const Value& block,
                const Value& slice) {
    // A parameter even where it is 1, which as such would be a constant.
    const Value together = t_.bands == 1   ? c_.index(1)
                           : c_.any_rows() ? c_.of_rows(t_.task_bands + 1) - c_.index(1)
                                           : c_.index(t_.task_bands);
    const bool whole = t_.bands == t_.blocks * t_.task_bands && (t_.bands == 1 || !c_.any_rows());
    const auto begin_of = [&](const Value& b) {
      if (whole) return b * together;
      // Rows of A that are packed begin at whole gangs.
      if (t_.a == Site::Task) return kernel::min(b * together, c_.of_rows(t_.bands));
      // The first blocks have `few` bands each, those from `more` on one band more.
      const i64 few = t_.bands / t_.blocks, more = t_.blocks - t_.bands % t_.blocks;
      const auto number = [&](i64 x) { return c_.of_rows(x + 1) - c_.index(1); };
      return b * number(few) + (kernel::max(b, number(more)) - number(more));
    };
    const Value first = begin_of(block);
    const Value last = begin_of(block + c_.index(1));
    const i64 outer = c_.outer_depth(), per_slice = ceil_div(outer, t_.slices);
    slice_ = slice;
    k_begin_ = slice * c_.of_depth(per_slice);
    k_end_ = t_.slices == 1 ? c_.of_depth(outer)
                            : kernel::min(k_begin_ + c_.of_depth(per_slice), c_.of_depth(outer));
    a_cells_ = b_cells_ = std::nullopt;
    const auto cells = [&](i64 stride) {
      auto count = static_cast<u32>(stride * c_.depth());
      if (c_.any_depth()) count = std::bit_ceil(count);  // one kernel for several depths
      return kernel::Shared(c_.accumulator(), count);
    };
    const PackRange k_range{k_begin_, k_end_};
    if (t_.b == Site::Task) {
      b_cells_ = cells(t_.b_stride);
      pack_columns(c_, t_, *b_cells_, batch, k_range);
    }
    if (t_.a == Site::Task) {
      a_cells_ = cells(t_.a_stride);
      const Value begin = first * c_.index(t_.rows);
      const Value end = kernel::min(last * c_.index(t_.rows), c_.of_rows(c_.shared_rows()));
      // A block of few rows starts earlier, so that it fills a gang.
      const i64 latest = std::max<i64>(0, c_.shared_rows() - t_.width);
      block_row_ = t_.bands == t_.task_bands ? c_.index(0) : kernel::min(begin, c_.of_rows(latest));
      pack_rows(c_, t_, *a_cells_, batch, block_row_, end, k_range);
    }
    if (a_cells_ || b_cells_) kernel::barrier();
    // One loop for any number of bands together, if there may be several.
    const bool one_band = t_.task_bands == 1 && (t_.bands == 1 || !c_.any_rows());
    const auto bands = [&](const Value& panel) {
      if (one_band) {
        run_tile(batch, first, panel);
      } else {
        kernel::For(first, last, c_.index(1),
                    [&](const Value& band) { run_tile(batch, band, panel); });
      }
    };
    if (t_.task_panels == 1) {
      bands(panel_group);
    } else {
      kernel::For(c_.index(0), c_.index(t_.panels), c_.index(1), bands);
    }
  }

  // The rows of a band. The last band begins earlier where it would not be full and its workgroup
  // has the rows before it too: then rows lie equally far apart, which no step of k has to look at.
  // Else rows past the end repeat the last one.
  std::vector<Value> rows_of(const Value& band) const {
    const i64 all = c_.shared_rows();
    const bool full = all % t_.rows == 0;
    const bool earlier = !full && t_.a == Site::Direct && t_.task_bands > 1;
    Value first = band * c_.index(t_.rows);
    if (earlier) first = kernel::min(first, c_.of_rows(all - t_.rows));
    std::vector<Value> rows;
    for (u32 i = 0; i < t_.rows; ++i) {
      const Value r = first + c_.index(i);
      rows.push_back(full || earlier ? r : kernel::min(r, c_.index(all - 1)));
    }
    return rows;
  }

  void run_tile(const Value& batch, const Value& band, const Value& panel) {
    std::vector<std::vector<kernel::VarValue>> sums(t_.rows);
    for (auto& of_row : sums) {
      for (u32 j = 0; j < t_.gangs; ++j) of_row.emplace_back(kernel::literal(c_.accumulator(), 0));
    }
    const std::vector<Value> rows = rows_of(band);
    std::vector<Value> columns;
    for (u32 j = 0; j < t_.gangs; ++j) {
      columns.push_back(panel * c_.index(t_.panel_columns()) + c_.index(j * t_.width));
    }
    const Value lane = c_.as_index(kernel::lane());
    const auto base = [&](const Value& count, const Value& at, i64 across) {
      return (batch * count + at) * c_.of_depth(c_.depth() * across);
    };
    const Value a_base = base(c_.of_rows(t_.bands), band, t_.rows);
    const Value b_base = base(c_.index(t_.panels), panel, t_.panel_columns());
    c_.each_depth(k_begin_, k_end_, 1, [&](const std::vector<Value>& depth, const Value& k) {
      std::vector<Value> right;
      for (u32 j = 0; j < t_.gangs; ++j) {
        if (b_) {
          right.push_back(
              b_->load(b_base + k * c_.index(t_.panel_columns()) + c_.index(j * t_.width) + lane));
        } else if (b_cells_) {
          right.push_back(b_cells_->load(k * c_.index(t_.b_stride) + columns[j] + lane));
        } else {
          Point p = c_.gang({batch, rows[0], columns[j], depth}, Axis::Column);
          right.push_back(c_.operand(1, p));
        }
      }
      for (u32 i = 0; i < t_.rows; ++i) {
        Value left;
        if (a_) {
          left = a_->load(a_base + k * c_.index(t_.rows) + c_.index(i));
        } else if (a_cells_) {
          left = a_cells_->load(k * c_.index(t_.a_stride) + (rows[i] - block_row_));
        } else {
          Point p = c_.gang({batch, rows[i], columns[0], depth}, Axis::Column);
          left = c_.operand(0, p);
        }
        for (u32 j = 0; j < t_.gangs; ++j) {
          sums[i][j].set(c_.multiply_add(left, right[j], sums[i][j].get()));
        }
      }
    });
    for (u32 j = 0; j < t_.gangs; ++j) {
      if (partial_) {
        for (u32 i = 0; i < t_.rows; ++i) {
          const Value r = batch * c_.of_rows(c_.shared_rows()) + rows[i];
          partial_->store((slice_ * c_.of_batches(c_.rows()) + r) * c_.index(partial_columns()) +
                              columns[j] + lane,
                          sums[i][j].get());
        }
        continue;
      }
      only_columns(columns[j], partial_columns(), [&] {
        for (u32 i = 0; i < t_.rows; ++i) store(batch, rows[i], columns[j], sums[i][j].get());
      });
    }
  }

  void store(const Value& batch, const Value& row, const Value& column, const Value& sum) {
    const std::vector<Value> origin(c_.depth_loops(), c_.index(0));
    Point p = c_.gang({batch, row, column, origin}, Axis::Column);
    c_.store(p, sum);
  }

  // Runs the body in the lanes whose column exists; the gangs of a row cover `covered` columns.
  void only_columns(const Value& column, i64 covered, const std::function<void()>& body) {
    if (c_.columns() == covered) {
      body();
    } else {
      kernel::If(kernel::Bool(column + c_.as_index(kernel::lane()) < c_.index(c_.columns())), body);
    }
  }

  void add_slices(Launches& out, u32 partial) {
    const i64 gangs = ceil_div(c_.columns(), t_.width);
    const i64 rows = std::clamp<i64>(8192 / (gangs * t_.width * t_.slices), 1, c_.rows());
    Launch launch = c_.make_launch();
    launch.label += " (merge)";
    launch.choice = fmt::format("adds {} slices in order", t_.slices);
    launch.flops = static_cast<f64>(t_.slices * c_.rows() * c_.columns());
    launch.args.push_back(ArgRef::temporary(partial));
    launch.groups = group_count(c_.in(), ceil_div(c_.rows(), rows));
    launch.kernel = kernel::trace("contract_merge", c_.in().target, t_.width, [&] {
      c_.declare();
      const Buffer from = kernel::param_buffer(c_.accumulator());
      const Value lane = c_.as_index(kernel::lane());
      const Value begin = c_.as_index(kernel::group()) * c_.of_batches(rows);
      const Value end = kernel::min(begin + c_.of_batches(rows), c_.of_batches(c_.rows()));
      kernel::For(begin, end, c_.index(1), [&](const Value& r) {
        const bool one = c_.batches() == 1;
        const Value batch = one ? c_.index(0) : r / c_.index(c_.shared_rows());
        const Value row = one ? r : r % c_.index(c_.shared_rows());
        kernel::For(c_.index(0), c_.index(gangs), c_.index(1), [&](const Value& g) {
          const Value column = g * c_.index(t_.width);
          std::optional<Value> sum;
          for (i64 s = 0; s < t_.slices; ++s) {
            const Value x = from.load(
                (c_.of_batches(s * c_.rows()) + r) * c_.index(partial_columns()) + column + lane);
            sum = sum ? *sum + x : x;
          }
          only_columns(column, gangs * t_.width, [&] { store(batch, row, column, *sum); });
        });
      });
    });
    out.list.push_back(std::move(launch));
  }

  ContractNest& c_;
  const CpuTiling& t_;
  // While the kernel is traced: where the operands are, and the part of the sum.
  std::optional<Buffer> a_, b_, partial_;
  std::optional<kernel::Shared> a_cells_, b_cells_;
  Value block_row_, slice_, k_begin_, k_end_;
};

}  // namespace

std::string describe(const char* operand, Site site, const char* why) {
  const char* where = site == Site::Direct ? "read in place"
                      : site == Site::Task ? "packed by each workgroup"
                                           : "packed by a launch before";
  return fmt::format("{} {}: {}", operand, where, why);
}

bool lower_contract_cpu(ContractNest& c, Launches& out) {
  // Tiny products go the general way, which compiles sooner.
  if (c.depth() == 0 || c.rows() * c.columns() * c.depth() < 4096) return false;
  if (lower_contract_dot(c, out)) return true;
  const CpuTiling tiling = make_tiling(c);
  TiledContract(c, tiling).lower(out);
  return true;
}

}  // namespace oa::graph
