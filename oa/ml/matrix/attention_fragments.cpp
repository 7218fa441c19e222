// Every subgroup owns 16 rows of the workgroup's tile. Products are fragments; what stands between
// them (masks, exponentials, sums of rows) goes through workgroup memory, where 8 lanes share a row
// and a lane has several, a row lane's distance apart, as in attention_tiled.cpp. Operands are
// rounded to 16 bits when they are brought there; sums stay in f32.
#include "oa/ml/matrix/attention_fragments.h"

#include "oa/kernel/math.h"
#include "oa/ml/matrix/attention_frame.h"

namespace oa::ml::matrix {
namespace {

using graph::Lower;
using kernel::Bool;
using kernel::Buffer;
using kernel::FragUse;
using kernel::Layout;
using kernel::Scalar;
using kernel::Shared;
using kernel::U32;
using kernel::VarValue;

constexpr u32 kSide = 16;       // of a fragment
constexpr u32 kColumns = 32;    // rows of the other side in a block
constexpr u32 kLanesOfRow = 8;  // lanes that share a row of scores
constexpr u32 kEach = kColumns / kLanesOfRow;
constexpr u32 kScorePitch = kColumns + 4, kWeightPitch = kColumns + 8;

struct Plan {
  u32 rows;  // of the workgroup
  Scalar narrow;
  u32 subgroup;
  u32 lanes() const { return rows / kSide * subgroup; }
  u32 lane_rows() const { return kSide * kLanesOfRow / subgroup; }  // of a lane
};

// `own`, `other`: 16-bit tiles that a kernel keeps of each side; `scores`, `weights`: tiles of
// scores in 32 and in 16 bits; `factors`: numbers that fragments are scaled by, row by row.
std::optional<Plan> make_plan(const Lower& l, const AttentionCall& c, Precision precision,
                              i64 own_length, i64 other_length, u32 own, u32 other, u32 scores,
                              u32 weights, u32 factors) {
  const kernel::Target& t = l.target();
  if (!rounds(precision) || !t.fragments || c.f.elem != Scalar::F32) return std::nullopt;
  if (precision == Precision::BF16 && !t.fragments_bf16) return std::nullopt;
  if (t.subgroup < kLanesOfRow || t.subgroup > kSide * kLanesOfRow) return std::nullopt;
  if (c.n.dim % 32 != 0 || own_length % 32 != 0 || other_length % kColumns != 0 ||
      own_length == 0 || other_length == 0) {
    return std::nullopt;
  }
  for (const u32 rows : {64u, 32u}) {
    const i64 tiles = (own * rows + other * kColumns) * (c.n.dim + 8) * 2;
    const i64 squares = rows * (scores * kScorePitch * 4 + weights * kWeightPitch * 2);
    const Plan plan{rows, precision == Precision::F16 ? Scalar::F16 : Scalar::BF16, t.subgroup};
    const bool fits = tiles + squares + factors * rows * kSide * 4 <= t.shared_bytes;
    if (own_length % rows == 0 && fits) return plan;
  }
  return std::nullopt;
}

std::string describe(const AttentionCall& c, const Plan& plan, bool causal) {
  return fmt::format(
      "{}; {} products on matrix units, {} rows of the own side and {} of the other "
      "in workgroup memory",
      c.sizes(causal), kernel::name(plan.narrow), plan.rows, kColumns);
}

class Kernel {
 public:
  Kernel(const AttentionFrame& f, const Plan& plan)
      : f_(f),
        plan_(plan),
        pitch_(static_cast<u32>(f.n.dim) + 8),
        first_row_(kernel::lane() / U32(kernel::subgroup_width()) * U32(kSide)),
        row_lane_(kernel::lane() / U32(kLanesOfRow)),
        column_lane_(kernel::lane() % U32(kLanesOfRow)) {}

  Shared tile(u32 rows) const { return {plan_.narrow, rows * pitch_}; }
  Shared scores() const { return {Scalar::F32, plan_.rows * kScorePitch}; }
  Shared weights() const { return {plan_.narrow, plan_.rows * kWeightPitch}; }
  Shared factors() const { return {Scalar::F32, plan_.rows * kSide}; }

  // Places of this lane within a square of scores.
  U32 row(u32 i) const { return row_lane_ + U32(i * plan_.rows / plan_.lane_rows()); }
  U32 column(u32 j) const { return column_lane_ + U32(j * kLanesOfRow); }
  U32 score_at(u32 i, u32 j) const { return row(i) * U32(kScorePitch) + column(j); }
  U32 weight_at(u32 i, u32 j) const { return row(i) * U32(kWeightPitch) + column(j); }
  Bool first_of_row() const { return column_lane_ == U32(0); }

  // Rows first .. first + count of a head, which begins at `base`.
  void load(const Shared& to, u32 count, const Buffer& from, const Value& base, i64 stride,
            const Value& first, const Value* scale = nullptr) const {
    const u32 per_row = static_cast<u32>(f_.n.dim) / 4, units = count * per_row / plan_.lanes();
    for (u32 u = 0; u < units; ++u) {
      const U32 id = kernel::lane() + U32(u * plan_.lanes());
      const U32 r = id / U32(per_row), d = id % U32(per_row) * U32(4);
      const Value row = first + kernel::cast(r, f_.type);
      const Value x = from.load(base + row * f_.at(stride) + kernel::cast(d, f_.type), 4);
      for (u32 i = 0; i < 4; ++i) {
        const Value v = kernel::extract(x, i);
        to.store(r * U32(pitch_) + d + U32(i), scale ? v * *scale : v);
      }
    }
  }

  // own x other^T of this subgroup's rows, into a square.
  void products(const Shared& to, const Shared& own, const Shared& other) const {
    for (u32 c = 0; c < kColumns; c += kSide) {
      Value sum = zero();
      for (u32 d = 0; d < f_.n.dim; d += kSide) {
        sum = kernel::frag_mul_add(
            kernel::frag_load(type(FragUse::A), own, first_row_ * U32(pitch_) + U32(d), U32(pitch_),
                              Layout::RowMajor),
            kernel::frag_load(type(FragUse::B), other, U32(c * pitch_ + d), U32(pitch_),
                              Layout::ColMajor),
            sum);
      }
      kernel::frag_store(to, first_row_ * U32(kScorePitch) + U32(c), U32(kScorePitch),
                         Layout::RowMajor, sum);
    }
  }

  // Results of this subgroup: fragments along the head.
  std::vector<VarValue> zeros() const {
    std::vector<VarValue> sums;
    for (i64 d = 0; d < f_.n.dim; d += kSide) sums.emplace_back(zero());
    return sums;
  }

  // sums += weights x other.
  void accumulate(const std::vector<VarValue>& sums, const Shared& weights,
                  const Shared& other) const {
    for (u32 c = 0; c < kColumns; c += kSide) {
      const Value w =
          kernel::frag_load(type(FragUse::A), weights, first_row_ * U32(kWeightPitch) + U32(c),
                            U32(kWeightPitch), Layout::RowMajor);
      for (u32 d = 0; d < sums.size(); ++d) {
        const Value v = kernel::frag_load(type(FragUse::B), other, U32(c * pitch_ + d * kSide),
                                          U32(pitch_), Layout::RowMajor);
        sums[d].set(kernel::frag_mul_add(w, v, sums[d].get()));
      }
    }
  }

  // Every row of the square becomes the lane's factor for it; rows belong to 8 lanes.
  void store_factor(const Shared& to, u32 i, const Value& factor) const {
    for (u32 c = 0; c < kSide; c += kLanesOfRow) {
      to.store(row(i) * U32(kSide) + column_lane_ + U32(c), factor);
    }
  }
  void scale(const std::vector<VarValue>& sums, const Shared& factors) const {
    const Value by =
        kernel::frag_load(kernel::fragment_type(FragUse::C, Scalar::F32, kSide, kSide), factors,
                          first_row_ * U32(kSide), U32(kSide), Layout::RowMajor);
    for (const VarValue& s : sums) s.set(kernel::frag_mul(s.get(), by));
  }

  void store(const Buffer& to, const Value& base, i64 stride, const Value& first,
             const std::vector<VarValue>& sums) const {
    const Value row = first + kernel::cast(first_row_, f_.type);
    for (u32 d = 0; d < sums.size(); ++d) {
      kernel::frag_store(to, base + row * f_.at(stride) + f_.at(d * kSide), f_.at(stride),
                         Layout::RowMajor, sums[d].get());
    }
  }

 private:
  kernel::Type type(FragUse use) const {
    return kernel::fragment_type(use, plan_.narrow, kSide, kSide);
  }
  static Value zero() {
    return kernel::frag_fill(kernel::fragment_type(FragUse::C, Scalar::F32, kSide, kSide),
                             kernel::constant(Scalar::F32, 0));
  }

  const AttentionFrame& f_;
  Plan plan_;
  u32 pitch_;
  U32 first_row_;  // of this subgroup
  U32 row_lane_, column_lane_;
};

}  // namespace

bool fragment_attention(Lower& l, const Attention::Attrs& a) {
  const AttentionCall call(l, a, 3);
  const AttentionSizes& n = call.n;
  const AttentionFrame& f = call.f;
  const auto plan = make_plan(l, call, a.precision, n.queries, n.keys, 1, 2, 1, 1, 1);
  if (!plan) return false;

  kernel::Kernel k = kernel::trace("attention_fragments", l.target(), plan->lanes(), [&] {
    const ForwardParams in(l, call);
    const OwnBlock own(f, plan->rows, n.heads, n.queries);
    const Value q_at = call.query_rows(own.b, own.h);
    const Value kv_at = call.shared_key_rows(own.b, own.h);

    const Kernel x(f, *plan);
    const Shared mine = x.tile(plan->rows), keys = x.tile(kColumns), values = x.tile(kColumns),
                 scores = x.scores(), weights = x.weights(), factors = x.factors();
    x.load(mine, plan->rows, in.q, q_at, call.qs.row, own.first, &in.scale);
    const std::vector<VarValue> sums = x.zeros();
    std::vector<VarValue> peak, total;
    std::vector<Value> query;
    for (u32 i = 0; i < plan->lane_rows(); ++i) {
      peak.emplace_back(f.minus_infinity());
      total.emplace_back(f.number(0));
      query.push_back(own.first + kernel::cast(x.row(i), f.type));
    }
    kernel::For(f.at(0), key_blocks(f, plan->rows, kColumns, a.causal, own.first), f.at(1),
                [&](const Value& j) {
                  const Value first = j * f.at(kColumns);
                  kernel::barrier();
                  x.load(keys, kColumns, in.key, kv_at, call.ks.row, first);
                  x.load(values, kColumns, in.value, kv_at, call.ks.row, first);
                  kernel::barrier();
                  x.products(scores, mine, keys);
                  kernel::barrier();
                  for (u32 i = 0; i < plan->lane_rows(); ++i) {
                    Value top = peak[i].get();
                    std::vector<Value> s;
                    for (u32 c = 0; c < kEach; ++c) {
                      const Value at = first + kernel::cast(x.column(c), f.type);
                      s.push_back(masked(f, in.mask, a.causal, scores.load(x.score_at(i, c)), own.b,
                                         own.h, query[i], at));
                      top = kernel::max(top, s.back());
                    }
                    top = over_lanes(top, kLanesOfRow, [](const Value& u, const Value& v) {
                      return kernel::max(u, v);
                    });
                    // A row without a key so far stays at nothing.
                    const Value shift = kernel::select(top == f.minus_infinity(), f.number(0), top);
                    const Value fade = kernel::exp(peak[i].get() - shift);
                    Value sum = f.number(0);
                    for (u32 c = 0; c < kEach; ++c) {
                      const Value p = kernel::exp(s[c] - shift);
                      sum = sum + p;
                      weights.store(x.weight_at(i, c), p);
                    }
                    sum = over_lanes(sum, kLanesOfRow,
                                     [](const Value& u, const Value& v) { return u + v; });
                    total[i].set(total[i].get() * fade + sum);
                    peak[i].set(top);
                    x.store_factor(factors, i, fade);
                  }
                  kernel::barrier();
                  x.scale(sums, factors);
                  x.accumulate(sums, weights, values);
                });
    kernel::barrier();
    for (u32 i = 0; i < plan->lane_rows(); ++i) {
      const Value sum = total[i].get();
      const Bool none(sum == f.number(0));
      x.store_factor(factors, i, kernel::select(none, f.number(0), f.number(1) / sum));
      kernel::If(x.first_of_row(), [&] {
        in.lse.store(own.bh * f.at(n.queries) + query[i],
                     kernel::select(none, f.minus_infinity(), peak[i].get() + kernel::log(sum)));
      });
    }
    kernel::barrier();
    x.scale(sums, factors);
    x.store(in.out, q_at, call.qs.row, own.first, sums);
  });
  l.explain(describe(call, *plan, a.causal));
  call.launch(l, std::move(k), n.batch * n.heads * OwnBlock::blocks(plan->rows, n.queries),
              ForwardParams::args(l), 4);
  return true;
}

bool fragment_query_gradient(Lower& l, const Attention::Attrs& a) {
  const AttentionCall call(l, a, 6);
  const AttentionSizes& n = call.n;
  const AttentionFrame& f = call.f;
  const auto plan = make_plan(l, call, a.precision, n.queries, n.keys, 2, 2, 2, 1, 0);
  if (!plan) return false;

  kernel::Kernel k = kernel::trace("attention_dq_fragments", l.target(), plan->lanes(), [&] {
    const QueryGradientParams in(l, call);
    const OwnBlock own(f, plan->rows, n.heads, n.queries);
    const Value q_at = call.query_rows(own.b, own.h);
    const Value kv_at = call.shared_key_rows(own.b, own.h);

    const Kernel x(f, *plan);
    const Shared mine = x.tile(plan->rows), my_grad = x.tile(plan->rows), keys = x.tile(kColumns),
                 values = x.tile(kColumns), scores = x.scores(), turns = x.scores(),
                 changes = x.weights();
    x.load(mine, plan->rows, in.q, q_at, call.qs.row, own.first, &in.scale);
    x.load(my_grad, plan->rows, in.grad, q_at, call.qs.row, own.first);
    const std::vector<VarValue> sums = x.zeros();
    std::vector<Value> query, shift, mean;
    for (u32 i = 0; i < plan->lane_rows(); ++i) {
      query.push_back(own.first + kernel::cast(x.row(i), f.type));
      const Value at = own.bh * f.at(n.queries) + query[i];
      const Value sum = in.lse.load(at);
      // A row without keys has no probabilities.
      shift.push_back(shift_of(f, sum));
      mean.push_back(in.delta.load(at));
    }
    kernel::For(f.at(0), key_blocks(f, plan->rows, kColumns, a.causal, own.first), f.at(1),
                [&](const Value& j) {
                  const Value first = j * f.at(kColumns);
                  kernel::barrier();
                  x.load(keys, kColumns, in.key, kv_at, call.ks.row, first);
                  x.load(values, kColumns, in.value, kv_at, call.ks.row, first);
                  kernel::barrier();
                  x.products(scores, mine, keys);
                  x.products(turns, my_grad, values);
                  kernel::barrier();
                  for (u32 i = 0; i < plan->lane_rows(); ++i) {
                    for (u32 c = 0; c < kEach; ++c) {
                      const Value at = first + kernel::cast(x.column(c), f.type);
                      const Value s = masked(f, in.mask, a.causal, scores.load(x.score_at(i, c)),
                                             own.b, own.h, query[i], at);
                      changes.store(x.weight_at(i, c),
                                    kernel::exp(s - shift[i]) *
                                        (turns.load(x.score_at(i, c)) - mean[i]) * in.scale);
                    }
                  }
                  kernel::barrier();
                  x.accumulate(sums, changes, keys);
                });
    x.store(in.out, q_at, call.qs.row, own.first, sums);
  });
  l.explain(describe(call, *plan, a.causal));
  call.launch(l, std::move(k), n.batch * n.heads * OwnBlock::blocks(plan->rows, n.queries),
              QueryGradientParams::args(l), 6);
  return true;
}

bool fragment_key_gradient(Lower& l, const Attention::Attrs& a) {
  const AttentionCall call(l, a, 6);
  const AttentionSizes& n = call.n;
  const AttentionFrame& f = call.f;
  const i64 sharing = n.heads / n.kv_heads;
  const auto plan = make_plan(l, call, a.precision, n.keys, n.queries, 2, 2, 2, 2, 0);
  if (!plan) return false;

  kernel::Kernel k = kernel::trace("attention_dkv_fragments", l.target(), plan->lanes(), [&] {
    const KeyGradientParams in(l, call);
    const OwnBlock own(f, plan->rows, n.kv_heads, n.keys);
    const Value k_at = call.key_rows(own.b, own.h);

    const Kernel x(f, *plan);
    const Shared my_key = x.tile(plan->rows), my_value = x.tile(plan->rows),
                 queries = x.tile(kColumns), grads = x.tile(kColumns), scores = x.scores(),
                 turns = x.scores(), weights = x.weights(), changes = x.weights();
    x.load(my_key, plan->rows, in.key, k_at, call.ks.row, own.first, &in.scale);
    x.load(my_value, plan->rows, in.value, k_at, call.ks.row, own.first);
    const std::vector<VarValue> key_sums = x.zeros(), value_sums = x.zeros();
    std::vector<Value> my_row;
    for (u32 i = 0; i < plan->lane_rows(); ++i)
      my_row.push_back(own.first + kernel::cast(x.row(i), f.type));
    // Causal: queries before the first key of the tile see none of it.
    const Value begin = a.causal ? own.first / f.at(kColumns) : f.at(0);
    kernel::For(f.at(0), f.at(sharing), f.at(1), [&](const Value& share) {
      const Value h = own.h * f.at(sharing) + share;
      const Value q_at = call.query_rows(own.b, h);
      const Value rows_at = call.query_numbers(own.b, h);
      kernel::For(begin, f.at(n.queries / kColumns), f.at(1), [&](const Value& block) {
        const Value first = block * f.at(kColumns);
        kernel::barrier();
        x.load(queries, kColumns, in.q, q_at, call.qs.row, first);
        x.load(grads, kColumns, in.grad, q_at, call.qs.row, first);
        kernel::barrier();
        x.products(scores, my_key, queries);
        x.products(turns, my_value, grads);
        kernel::barrier();
        for (u32 c = 0; c < kEach; ++c) {
          const Value query = first + kernel::cast(x.column(c), f.type);
          const Value sum = in.lse.load(rows_at + query), mean = in.delta.load(rows_at + query);
          const Value shift = shift_of(f, sum);
          for (u32 i = 0; i < plan->lane_rows(); ++i) {
            const Value s = masked(f, in.mask, a.causal, scores.load(x.score_at(i, c)), own.b, h,
                                   query, my_row[i]);
            const Value p = kernel::exp(s - shift);
            weights.store(x.weight_at(i, c), p);
            changes.store(x.weight_at(i, c), p * (turns.load(x.score_at(i, c)) - mean) * in.scale);
          }
        }
        kernel::barrier();
        x.accumulate(value_sums, weights, grads);
        x.accumulate(key_sums, changes, queries);
      });
    });
    x.store(in.out_key, k_at, call.ks.row, own.first, key_sums);
    x.store(in.out_value, k_at, call.ks.row, own.first, value_sums);
  });
  l.explain(describe(call, *plan, a.causal));
  call.launch(l, std::move(k), n.batch * n.kv_heads * OwnBlock::blocks(plan->rows, n.keys),
              KeyGradientParams::args(l), 8);
  return true;
}

}  // namespace oa::ml::matrix
