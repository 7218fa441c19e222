// How lanes share a step, the weights in their registers, and the loads one step ahead.
#include "oa/ml/matrix/recurrent_held.h"

#include <algorithm>
#include <bit>

#include "oa/matrix/kernel_tools.h"

namespace oa::ml::matrix {

using graph::ArgRef;
using kernel::Bool;
using kernel::Shared;
using kernel::U32;
using kernel::Value;
using kernel::VarValue;

namespace {

constexpr i64 kTogether = 4;   // elements of the state that a lane reads at once
constexpr i64 kMostParts = 4;  // lanes of a column
constexpr i64 kMostHeld = 96;  // weights of a lane, so that two workgroups fit a processor

i64 padded_depth(i64 depth, i64 parts) {
  return oa::matrix::ceil_div(depth, kTogether * parts) * kTogether * parts;
}

}  // namespace

i64 HeldScan::columns(i64 hidden) {
  return static_cast<i64>(std::bit_ceil(static_cast<u64>(hidden)));
}

// As few as have room for the weights, since all lanes of a column compute what follows the sums.
i64 HeldScan::parts(const kernel::Target& target, i64 hidden, i64 sums, i64 depth) {
  const i64 most = std::min<i64>(kMostParts, target.subgroup);
  i64 n = 1;
  while (2 * n <= most && 2 * n * columns(hidden) <= target.width &&
         held(sums, depth, n) > kMostHeld) {
    n *= 2;
  }
  return n;
}

i64 HeldScan::held(i64 sums, i64 depth, i64 parts) {
  return sums * padded_depth(depth, parts) / parts;
}

bool HeldScan::fits(const graph::Lower& l, i64 hidden, i64 sums, i64 depth) {
  const kernel::Target& t = l.target();
  return !t.is_cpu() && l.in(0).dtype == DType::F32 && columns(hidden) <= t.width &&
         held(sums, depth, parts(t, hidden, sums, depth)) <= kMostHeld;
}

HeldScan::HeldScan(graph::Lower& l, const Shape& gates_i, i64 hidden, i64 sums, i64 depth,
                   i64 most_elements, bool backward, bool reverse)
    : l_(l),
      batch_count_(gates_i[0]),
      step_count_(gates_i[1]),
      hidden_(hidden),
      sum_count_(sums),
      depth_(depth),
      backward_(backward),
      reverse_(reverse),
      parts_(parts(l.target(), hidden, sums, depth)),
      padded_(padded_depth(depth, parts_)),
      width_(static_cast<u32>(
          std::max<i64>(columns(hidden) * parts_, static_cast<i64>(l.target().subgroup)))),
      type_(oa::matrix::index_type(std::max(most_elements, 3 * hidden * hidden))) {}

Value HeldScan::at(i64 x) const { return oa::matrix::index(type_, x); }

void HeldScan::store(const std::function<void()>& stores) const {
  if (stores_) {
    kernel::If(*stores_, stores);
  } else {
    stores();
  }
}

void HeldScan::launch(const std::string& name, std::vector<ArgRef> args, f64 flops,
                      const std::function<Body()>& body) {
  kernel::Kernel k = kernel::trace(name, l_.target(), width_, [&] {
    steps_ = kernel::cast(kernel::param_u32(), type_);
    const Value lane = kernel::cast(kernel::lane(), type_);
    const Value column = lane / at(parts_);
    row_ = kernel::cast(kernel::group(), type_);
    part_ = lane % at(parts_);
    // Lanes past the last column repeat it.
    column_ = kernel::min(column, at(hidden_ - 1));
    stores_.reset();
    if (width_ != hidden_ * parts_ || parts_ > 1) {
      stores_ = Bool((part_ == at(0)) & (column < at(hidden_)));
    }
    run(body());
  });
  std::vector<ArgRef> all = {ArgRef::number(static_cast<u64>(step_count_))};
  all.insert(all.end(), args.begin(), args.end());
  l_.launch(std::move(k), batch_count_, std::move(all), flops);
}

HeldScan::Step HeldScan::step_at(const Value& turn) const {
  const Value last = steps_ - at(1);
  const Value now = backward_ != reverse_ ? last - turn : turn;
  const Value before = reverse_ ? kernel::min(now + at(1), last) : kernel::max(now, at(1)) - at(1);
  return {now, Bool(now == (reverse_ ? last : at(0))), before};
}

void HeldScan::run(const Body& body) {
  const Values held = weights(body.weight);
  // Half of the cells are read in a step, the other half written; those past the depth stay 0.
  const Shared cells(kernel::Scalar::F32, static_cast<u32>(2 * padded_));
  kernel::For(kernel::cast(kernel::lane(), type_), at(2 * padded_), at(width_),
              [&](const Value& i) {
                const VarValue x(number(0));
                if (body.first) {
                  kernel::If(Bool(i < at(depth_)), [&] { x.set(body.first(i)); });
                }
                cells.store(i, x.get());
              });
  std::vector<VarValue> ahead;
  for (const Value& v : body.load(step_at(at(0)))) ahead.emplace_back(v);
  kernel::barrier();
  kernel::For(at(0), steps_, at(1), [&](const Value& turn) {
    Values loaded;
    for (const VarValue& v : ahead) loaded.push_back(v.get());
    const Values next = body.load(step_at(kernel::min(turn + at(1), steps_ - at(1))));
    for (size_t i = 0; i < next.size(); ++i) ahead[i].set(next[i]);
    const Value half = turn % at(2) * at(padded_);
    const Values sums = products(cells, half, held);
    const Values state = body.step(step_at(turn), loaded, sums);
    store([&] {
      const Value other = at(padded_) - half;
      for (size_t i = 0; i < state.size(); ++i) {
        cells.store(other + at(static_cast<i64>(i) * hidden_) + column_, state[i]);
      }
    });
    kernel::barrier();
  });
  if (body.end) body.end();
}

// The lane's weights: of k its part of every kTogether * parts elements.
HeldScan::Values HeldScan::weights(const kernel::Buffer& weight) const {
  Values held;
  const bool transposed = !backward_, together = transposed && hidden_ % kTogether == 0;
  for (i64 g = 0; g < sum_count_; ++g) {
    const Value row = (at(g * hidden_) + column_) * at(depth_);
    for (i64 k = 0; k < padded_; k += kTogether * parts_) {
      const Value first = at(k) + part_ * at(kTogether);
      const bool whole = k + kTogether * parts_ <= depth_;
      if (together && whole) {
        const Value four = weight.load(row + first, kTogether);
        for (u32 i = 0; i < kTogether; ++i) held.push_back(kernel::extract(four, i));
        continue;
      }
      for (i64 i = 0; i < kTogether; ++i) {
        const Value mine = first + at(i);
        const Value read = whole ? mine : kernel::min(mine, at(depth_ - 1));
        const Value x = weight.load(transposed ? row + read : read * at(hidden_) + column_);
        held.push_back(whole ? x : kernel::select(Bool(mine < at(depth_)), x, number(0)));
      }
    }
  }
  return held;
}

HeldScan::Values HeldScan::products(const Shared& cells, const Value& from,
                                    const Values& weights) const {
  const i64 each = padded_ / parts_;
  std::vector<Values> chains(static_cast<size_t>(sum_count_), Values(kTogether, number(0)));
  for (i64 k = 0; k < each; k += kTogether) {
    const Value four = cells.load(from + at(k * parts_) + part_ * at(kTogether), kTogether);
    for (i64 g = 0; g < sum_count_; ++g) {
      for (i64 i = 0; i < kTogether; ++i) {
        Value& chain = chains[static_cast<size_t>(g)][static_cast<size_t>(i)];
        chain = kernel::fma(kernel::extract(four, static_cast<u32>(i)),
                            weights[static_cast<size_t>(g * each + k + i)], chain);
      }
    }
  }
  Values sums;
  for (const Values& c : chains) {
    Value sum = (c[0] + c[1]) + (c[2] + c[3]);
    for (u32 apart = 1; apart < static_cast<u32>(parts_); apart *= 2) {
      sum = sum + kernel::shuffle_xor(sum, apart);
    }
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace oa::ml::matrix
