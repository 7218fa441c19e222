#include "oa/ml/matrix/recurrent_frame.h"

#include <algorithm>

#include "oa/matrix/kernel_tools.h"

namespace oa::ml::matrix {

using graph::ArgRef;
using kernel::Bool;
using kernel::Buffer;
using kernel::Value;
using kernel::VarValue;
using oa::matrix::ceil_div;

ScanFrame::ScanFrame(graph::Lower& l, const Shape& gates_i, i64 hidden, i64 gates,
                     i64 most_elements, bool reverse)
    : l_(l),
      elem_(graph::element_scalar(l.in(0).dtype)),
      batch_count_(gates_i[0]),
      step_count_(gates_i[1]),
      hidden_(hidden),
      gates_(gates),
      reverse_(reverse) {
  const kernel::Target& t = l.target();
  const i64 bytes = element_bytes();
  if (t.is_cpu()) {
    // Eight sums side by side hide the latency of an FMA; few rows take more columns instead.
    width_ = t.width;
    const i64 vectors = std::max<i64>(1, width_ * bytes / t.vector_bytes);
    const i64 tiles = std::max<i64>(1, 8 / vectors);
    while (rows_ * 2 <= std::min(tiles, batch_count_)) rows_ *= 2;
    gangs_ = std::min(tiles / rows_, ceil_div(hidden_, width_));
    // Several workgroups for every thread, of few enough rows that a panel of the weights stays
    // near for all of them.
    const i64 share = ceil_div(batch_count_, 4 * static_cast<i64>(t.threads));
    group_rows_ = std::clamp(ceil_div(share, rows_) * rows_, rows_, 8 * rows_);
  } else {
    width_ = t.subgroup;
    while (width_ * 2 <= t.width && width_ < hidden_) width_ *= 2;
    rows_ = std::clamp<i64>(batch_count_ / std::max(1u, t.threads), 1, 4);
    while (width_ > 1 && rows_ * gates_ * width_ * bytes > t.shared_bytes / 2) width_ /= 2;
    group_rows_ = rows_;
  }
  panel_count_ = ceil_div(hidden_, panel_columns());
  const i64 packed = panel_count_ * panel_columns() * hidden_ * 3;
  type_ = oa::matrix::index_type(std::max(most_elements, packed));
}

Value ScanFrame::at(i64 x) const { return oa::matrix::index(type_, x); }

ArgRef ScanFrame::pack_transposed(const ArgRef& weight, i64 gates) {
  return pack(weight, gates, hidden_, true);
}
ArgRef ScanFrame::pack(const ArgRef& weight, i64 gates) {
  return pack(weight, 1, gates * hidden_, false);
}

ArgRef ScanFrame::pack(const ArgRef& weight, i64 gates, i64 depth, bool transposed) {
  const i64 columns = panel_columns();
  const ArgRef packed =
      l_.temp(static_cast<u64>(panels() * gates * depth * columns) * kernel::size_bytes(elem_));
  // Slices of the depth, so that there is work for every thread.
  const i64 slices = std::clamp<i64>(depth / 32, 1, 8), length = ceil_div(depth, slices);
  kernel::Kernel k = kernel::trace("recurrent_pack", l_.target(), width_, [&] {
    const Buffer from = param(), to = param();
    const Value group = kernel::cast(kernel::group(), type_);
    const Value slice = group % at(slices), cell = group / at(slices);
    const Value panel = cell / at(gates), gate = cell % at(gates);
    const Value lane = kernel::cast(kernel::lane(), type_);
    const Value begin = slice * at(length);
    kernel::For(begin, kernel::min(begin + at(length), at(depth)), at(1), [&](const Value& d) {
      for (i64 j = 0; j < gangs_; ++j) {
        const Value column = panel * at(columns) + at(j * width_) + lane;
        const auto source = [&] {
          return from.load(transposed ? (gate * at(hidden_) + column) * at(depth) + d
                                      : d * at(hidden_) + column);
        };
        Value x;
        if (hidden_ % columns == 0) {
          x = source();
        } else {
          const VarValue kept(number(0));
          kernel::If(Bool(column < at(hidden_)), [&] { kept.set(source()); });
          x = kept.get();
        }
        to.store((cell * at(depth) + d) * at(columns) + at(j * width_) + lane, x);
      }
    });
  });
  l_.explain(fmt::format("weights for the scan, {} columns side by side; packed in {} slices",
                         columns, slices));
  l_.launch(std::move(k), panels() * gates * slices, {weight, packed});
  ArgRef read = packed;
  read.write = false;
  return read;
}

void ScanFrame::launch(const std::string& name, std::vector<ArgRef> args, f64 flops,
                       const std::function<void()>& body) {
  kernel::Kernel k = kernel::trace(name, l_.target(), width_, [&] {
    batch_ = kernel::cast(kernel::param_u32(), type_);
    steps_ = kernel::cast(kernel::param_u32(), type_);
    const Value per_group = kernel::cast(kernel::param_u32(), type_);
    group_row_ = kernel::cast(kernel::group(), type_) * per_group;
    end_row_ = kernel::min(group_row_ + per_group, batch_);
    lane_ = kernel::cast(kernel::lane(), type_);
    sums_.emplace(elem_, static_cast<u32>(gates_ * rows_ * panel_columns()));
    body();
  });
  std::vector<ArgRef> all;
  for (i64 x : {batch_count_, step_count_, group_rows_}) {
    all.push_back(ArgRef::number(static_cast<u64>(x)));
  }
  all.insert(all.end(), args.begin(), args.end());
  l_.explain(
      fmt::format("all {} steps of {} rows in one launch, {} rows a workgroup; tiles of {} x {} "
                  "sums, {} hidden",
                  step_count_, batch_count_, group_rows_, rows_, panel_columns(), hidden_));
  l_.launch(std::move(k), ceil_div(batch_count_, group_rows_), std::move(all), flops);
}

void ScanFrame::for_steps(bool backward, const std::function<void(const Step&)>& body) {
  const auto position = [&](const Value& turn) {
    return backward != reverse_ ? steps_ - at(1) - turn : turn;
  };
  kernel::For(at(0), steps_, at(1), [&](const Value& turn) {
    const Value last = kernel::max(turn, at(1)) - at(1);
    body({Bool(turn == at(0)), position(turn), position(last), turn});
  });
}

Bool ScanFrame::starts(const Value& now) const {
  return Bool(now == (reverse_ ? steps_ - at(1) : at(0)));
}

Value ScanFrame::before(const Value& now) const {
  return reverse_ ? kernel::min(now + at(1), steps_ - at(1)) : kernel::max(now, at(1)) - at(1);
}

void ScanFrame::join() const { kernel::barrier(kernel::kSharedMemory | kernel::kDeviceMemory); }

void ScanFrame::for_tiles(const std::function<void(const Tile&)>& body) {
  const i64 full = hidden_ / panel_columns();
  if (full > 0) {
    kernel::For(at(0), at(full), at(1), [&](const Value& panel) { for_rows(panel, false, body); });
  }
  if (full < panels()) for_rows(at(full), true, body);
}

void ScanFrame::for_rows(const Value& panel, bool ragged,
                         const std::function<void(const Tile&)>& body) {
  kernel::For(group_row_, end_row_, at(rows_),
              [&](const Value& row) { body({panel, row, ragged}); });
}

void ScanFrame::product(const Tile& tile, const Rows& rows, const Weights& weights, i64 gate,
                        const Value& count, i64 first, i64 into) {
  std::vector<Value> starts;
  std::vector<VarValue> sums;
  for (i64 i = 0; i < rows_; ++i) {
    // Rows past the last one repeat it.
    const Value row = i == 0 ? tile.row : kernel::min(tile.row + at(i), batch_ - at(1));
    starts.push_back(rows.start(row));
    for (i64 j = 0; j < gangs_; ++j) sums.emplace_back(number(0));
  }
  const i64 columns = panel_columns();
  const Value base = weights_at(tile, weights, gate, first);
  kernel::For(at(0), count, at(1), [&](const Value& k) {
    std::vector<Value> right;
    for (i64 j = 0; j < gangs_; ++j) {
      right.push_back(weights.buffer.load(base + k * at(columns) + at(j * width_) + lane_));
    }
    for (size_t i = 0; i < starts.size(); ++i) {
      const Value left = rows.buffer.load(starts[i] + k);
      for (size_t j = 0; j < right.size(); ++j) {
        const VarValue& s = sums[i * right.size() + j];
        s.set(kernel::fma(left, right[j], s.get()));
      }
    }
  });
  store_sums(sums, into);
}

Value ScanFrame::weights_at(const Tile& tile, const Weights& weights, i64 gate, i64 first) const {
  return ((tile.panel * at(weights.gates) + at(gate)) * at(weights.depth) + at(first)) *
         at(panel_columns());
}

void ScanFrame::store_sums(const std::vector<VarValue>& sums, i64 into) const {
  for (size_t s = 0; s < sums.size(); ++s) {
    sums_->store(at((into * rows_ * gangs_ + static_cast<i64>(s)) * width_) + lane_, sums[s].get());
  }
}

// On a GPU, one sum per row and lane (there is one gang). Its loads go together, and its terms in
// turns into a few sums, since a lane waits for each.
void ScanFrame::product(const Tile& tile, const Step& s, const Carry& carry, const Rows& rows,
                        const Weights& weights, i64 gate, const Value& count, i64 into) {
  if (!carry.cells_) return product(tile, rows, weights, gate, count, 0, into);
  constexpr u32 kTogether = 8, kChains = 4;
  const i64 depth = carry.depth_, whole = depth / kTogether * kTogether;
  const Value base = weights_at(tile, weights, gate, 0);
  std::vector<Value> starts;
  std::vector<VarValue> sums;
  for (i64 i = 0; i < rows_; ++i) {
    starts.push_back(
        carry.row_at(s.turn, i == 0 ? tile.row : kernel::min(tile.row + at(i), batch_ - at(1))));
    for (u32 c = 0; c < kChains; ++c) sums.emplace_back(number(0));
  }
  const auto terms = [&](const Value& k, u32 together) {
    std::vector<Value> right;
    for (u32 t = 0; t < together; ++t) {
      right.push_back(weights.buffer.load(base + (k + at(t)) * at(panel_columns()) + lane_));
    }
    for (size_t i = 0; i < starts.size(); ++i) {
      for (u32 t = 0; t < together; ++t) {
        const VarValue& sum = sums[i * kChains + t % kChains];
        sum.set(kernel::fma(carry.cells_->load(starts[i] + k + at(t)), right[t], sum.get()));
      }
    }
  };
  if (whole > 0) {
    kernel::For(at(0), at(whole), at(kTogether), [&](const Value& k) { terms(k, kTogether); });
  }
  if (whole < depth) {
    kernel::For(at(whole), at(depth), at(1), [&](const Value& k) { terms(k, 1); });
  }
  std::vector<VarValue> totals;
  for (size_t i = 0; i < starts.size(); ++i) {
    const VarValue* of_row = &sums[i * kChains];
    totals.emplace_back((of_row[0].get() + of_row[1].get()) + (of_row[2].get() + of_row[3].get()));
  }
  store_sums(totals, into);
}

ScanFrame::Carry::Carry(const ScanFrame& f, i64 depth, const Start& start) : f_(f), depth_(depth) {
  const i64 elements = 2 * f.rows_ * depth;
  const kernel::Target& t = f.l_.target();
  if (t.is_cpu() || elements * f.element_bytes() > t.shared_bytes / 2) return;
  OA_CHECK(f.gangs_ == 1 && f.group_rows_ == f.rows_);
  cells_.emplace(f.elem_, static_cast<u32>(elements));
  kernel::For(f.lane_, f.at(f.rows_ * depth), f.at(f.width_), [&](const Value& i) {
    const Value row = kernel::min(f.group_row_ + i / f.at(depth), f.batch_ - f.at(1));
    cells_->store(i, start ? start(row, i % f.at(depth)) : f.number(0));
  });
  kernel::barrier();
}

Value ScanFrame::Carry::row_at(const Value& turn, const Value& row) const {
  return (turn % f_.at(2) * f_.at(f_.rows_) + (row - f_.group_row_)) * f_.at(depth_);
}

void ScanFrame::Carry::keep(const Step& s, const Value& row, const Value& k, const Value& x) const {
  if (cells_) cells_->store(row_at(s.turn + f_.at(1), row) + k, x);
}

void ScanFrame::Carry::join() const {
  if (cells_) {
    kernel::barrier();
  } else {
    f_.join();
  }
}

void ScanFrame::for_elements(
    const Tile& tile, const std::function<void(const Value&, const Value&, const Value&)>& body) {
  kernel::For(at(0), kernel::min(at(rows_), end_row_ - tile.row), at(1), [&](const Value& i) {
    const auto gang = [&](const Value& j) {
      const Value column = tile.panel * at(panel_columns()) + j * at(width_) + lane_;
      const Value cell = (i * at(gangs_) + j) * at(width_) + lane_;
      if (tile.ragged) {
        kernel::If(Bool(column < at(hidden_)), [&] { body(tile.row + i, column, cell); });
      } else {
        body(tile.row + i, column, cell);
      }
    };
    if (gangs_ == 1) {
      gang(at(0));
    } else {
      kernel::For(at(0), at(gangs_), at(1), gang);
    }
  });
}

Value ScanFrame::sum(const Value& cell, i64 number) const {
  return sums_->load(cell + at(number * rows_ * panel_columns()));
}

}  // namespace oa::ml::matrix
