// A tile of products is spread over the lanes as row lanes x 8 column lanes: a lane has 4
// rows, a row lane's distance apart, and `each` columns, 8 apart, so that neighbouring lanes read
// neighbouring rows of workgroup memory. A row of scores belongs to 8 lanes of one subgroup, which
// exchange its maximum and sum directly. Results have 4 neighbouring columns of every 32 per lane.
//
// Quads (4 elements) of a row are permuted by the row's number instead of padded, so that rows
// begin in other banks, and scores take the place of operands that are not needed any more: many
// lanes at work count for more here than large rectangles (8x4 per lane: 225 us where 4x4 take
// 183).
#include "oa/ml/matrix/attention_tiled.h"

#include <array>

#include "oa/kernel/math.h"
#include "oa/ml/matrix/attention_frame.h"

namespace oa::ml::matrix {
namespace {

using graph::Lower;
using kernel::Bool;
using kernel::Buffer;
using kernel::Shared;
using kernel::U32;
using kernel::VarValue;
using oa::matrix::ceil_div;

constexpr u32 kRows = 4;     // of a lane
constexpr u32 kColumns = 8;  // lanes that share a row
constexpr u32 kQuad = 4;     // elements

struct TileShape {
  u32 rows;  // of the workgroup's own side
  u32 each;  // columns of scores per lane

  u32 row_lanes() const { return rows / kRows; }
  u32 lanes() const { return row_lanes() * kColumns; }
  u32 columns() const { return kColumns * each; }  // rows of the other side
  u32 scores() const { return rows * columns(); }
};

// `floats`: elements of workgroup memory that a kernel needs with a shape.
template <class Floats>
std::optional<TileShape> choose_tile(const Lower& l, const AttentionCall& c, i64 own_length,
                                     i64 other_length, const Floats& floats) {
  const kernel::Target& t = l.target();
  if (t.is_cpu() || c.f.value != kernel::Scalar::F32 || c.n.dim % 32 != 0) return std::nullopt;
  if (t.subgroup < kColumns || own_length == 0 || other_length == 0) return std::nullopt;
  for (const TileShape& shape :
       std::initializer_list<TileShape>{{64, 4}, {64, 2}, {32, 4}, {32, 2}, {16, 4}, {16, 2}}) {
    // Half of a tile may be empty, not more.
    if (shape.rows > 16 && shape.rows >= 2 * own_length) continue;
    if (shape.each > 2 && shape.columns() >= 2 * other_length) continue;
    if (shape.lanes() % t.subgroup != 0) continue;
    if (static_cast<i64>(floats(shape)) * 4 <= t.shared_bytes) return shape;
  }
  return std::nullopt;
}

std::string describe(const AttentionCall& c, const TileShape& shape, bool causal) {
  return fmt::format(
      "{}; tiles in workgroup memory: {} rows of the own side, {} of the other, {} "
      "lanes share a row of scores",
      c.sizes(causal), shape.rows, shape.columns(), kColumns);
}

using Scores = std::vector<VarValue>;  // [kRows][each] of a lane

class Tile {
 public:
  Tile(const AttentionFrame& f, const TileShape& shape)
      : f_(f),
        shape_(shape),
        dim_(static_cast<u32>(f.n.dim)),
        row_lane_(kernel::lane() / U32(kColumns)),
        column_lane_(kernel::lane() % U32(kColumns)) {}

  // Places within the tile: row i of this lane, score column j.
  U32 row(u32 i) const { return row_lane_ + U32(i * shape_.row_lanes()); }
  U32 column(u32 j) const { return column_lane_ + U32(j * kColumns); }

  // Copies rows first .. first + count of a head, which begins at `base`; past the end the last row
  // is there again.
  void load(const Shared& to, u32 count, const Buffer& from, const Value& base, i64 stride,
            const Value& first, i64 length, const Value* scale = nullptr) const {
    const u32 per_row = dim_ / kQuad;
    const u32 units = static_cast<u32>(ceil_div(count * per_row, shape_.lanes()));
    const bool even = count * per_row % shape_.lanes() == 0;
    for (u32 u = 0; u < units; ++u) {
      const U32 id = kernel::lane() + U32(u * shape_.lanes());
      const U32 r = id / U32(per_row), quad = id % U32(per_row);
      const auto copy = [&] {
        const Value last = f_.at(length - 1);
        const Value row = kernel::min(first + kernel::cast(r, f_.type), last);
        Value x = kernel::cast(
            from.load(base + row * f_.at(stride) + kernel::cast(quad * U32(kQuad), f_.type), kQuad),
            f_.value);
        if (scale) {
          std::vector<Value> scaled;
          for (u32 i = 0; i < kQuad; ++i) scaled.push_back(kernel::extract(x, i) * *scale);
          x = kernel::vec(scaled);
        }
        to.store(r * U32(dim_) + permuted(quad, r & U32(kSpread)), x);
      };
      if (even || u + 1 < units) {
        copy();
      } else {
        kernel::If(id < U32(count * per_row), copy);
      }
    }
  }

  // own x other^T: this lane's rectangle.
  Scores products(const Shared& own, const Shared& other) const {
    Scores sums;
    for (u32 i = 0; i < kRows * shape_.each; ++i) sums.emplace_back(f_.number(0));
    kernel::For(U32(0), U32(dim_ / kQuad), U32(2), [&](const Value& begin) {
      for (u32 u = 0; u < 2; ++u) {
        const U32 quad = U32(begin) + U32(u);
        std::vector<std::array<Value, kQuad>> a, b;
        for (u32 i = 0; i < kRows; ++i) a.push_back(line(own, row(i), row_key(i), quad));
        for (u32 j = 0; j < shape_.each; ++j)
          b.push_back(line(other, column(j), column_lane_, quad));
        for (u32 i = 0; i < kRows; ++i) {
          for (u32 j = 0; j < shape_.each; ++j) {
            VarValue& sum = sums[i * shape_.each + j];
            Value s = sum.get();
            for (u32 x = 0; x < kQuad; ++x) s = kernel::fma(a[i][x], b[j][x], s);
            sum.set(s);
          }
        }
      }
    });
    return sums;
  }

  // Where this lane's score (i, j) lies in a square of scores that begins at `first`.
  U32 score_at(u32 i, u32 j, u32 first = 0) const {
    const U32 quad = column_lane_ / U32(kQuad) + U32(j * kColumns / kQuad);
    return U32(first) + row(i) * U32(shape_.columns()) + permuted(quad, score_key(i)) +
           column_lane_ % U32(kQuad);
  }
  void store_scores(const Shared& to, const std::vector<Value>& values, u32 first = 0) const {
    for (u32 i = 0; i < kRows; ++i) {
      for (u32 j = 0; j < shape_.each; ++j) {
        to.store(score_at(i, j, first), values[i * shape_.each + j]);
      }
    }
  }

  // Results of this lane: [kRows][dim / 8].
  std::vector<VarValue> zeros() const {
    std::vector<VarValue> sums;
    for (u32 i = 0; i < kRows * wide(); ++i) sums.emplace_back(f_.number(0));
    return sums;
  }

  // sums += scores x other, of scores that begin at `at`.
  void accumulate(std::vector<VarValue>& sums, const Shared& scores, const Shared& other,
                  u32 at = 0) const {
    kernel::For(U32(0), U32(shape_.columns() / kQuad), U32(1), [&](const Value& step) {
      const U32 quad(step);
      std::vector<Value> p;
      for (u32 i = 0; i < kRows; ++i) {
        p.push_back(scores.load(
            U32(at) + row(i) * U32(shape_.columns()) + permuted(quad, score_key(i)), kQuad));
      }
      for (u32 x = 0; x < kQuad; ++x) {
        const U32 r = quad * U32(kQuad) + U32(x);
        const U32 begin = r * U32(dim_) + permuted(column_lane_, r & U32(kSpread));
        for (u32 m = 0; m < wide(); m += kQuad) {
          const Value v = other.load(begin + U32(m * kColumns), kQuad);
          for (u32 i = 0; i < kRows; ++i) {
            for (u32 k = 0; k < kQuad; ++k) {
              VarValue& sum = sums[i * wide() + m + k];
              sum.set(kernel::fma(kernel::extract(p[i], x), kernel::extract(v, k), sum.get()));
            }
          }
        }
      }
    });
  }

  void scale_row(std::vector<VarValue>& sums, u32 i, const Value& factor) const {
    for (u32 m = 0; m < wide(); ++m) {
      VarValue& sum = sums[i * wide() + m];
      sum.set(sum.get() * factor);
    }
  }

  // Writes the rows that exist, from row `first` of the head on.
  void store(const Buffer& to, const Value& base, i64 stride, const Value& first, i64 length,
             const std::vector<VarValue>& sums) const {
    for (u32 i = 0; i < kRows; ++i) {
      const Value r = first + kernel::cast(row(i), f_.type);
      kernel::If(Bool(r < f_.at(length)), [&] {
        for (u32 m = 0; m < wide(); m += kQuad) {
          std::vector<Value> v;
          for (u32 k = 0; k < kQuad; ++k) v.push_back(sums[i * wide() + m + k].get());
          const U32 column = column_lane_ * U32(kQuad) + U32(m * kColumns);
          to.store(base + r * f_.at(stride) + kernel::cast(column, f_.type), kernel::vec(v));
        }
      });
    }
  }

 private:
  static constexpr u32 kSpread = 7;  // quads are permuted among 8

  u32 wide() const { return dim_ / kColumns; }
  // Where quad `quad` of a row lies, given the row's number modulo 8 or a smaller power of two.
  static U32 permuted(const U32& quad, const U32& key) { return (quad ^ key) * U32(kQuad); }
  U32 row_key(u32 i) const {
    return (shape_.row_lanes() % 8 == 0 ? row_lane_ : row(i)) & U32(kSpread);
  }
  U32 score_key(u32 i) const {
    return row_key(i) & U32(std::min(kSpread, shape_.columns() / kQuad - 1));
  }

  std::array<Value, kQuad> line(const Shared& from, const U32& r, const U32& key,
                                const U32& quad) const {
    const Value v = from.load(r * U32(dim_) + permuted(quad, key), kQuad);
    return {kernel::extract(v, 0), kernel::extract(v, 1), kernel::extract(v, 2),
            kernel::extract(v, 3)};
  }

  const AttentionFrame& f_;
  TileShape shape_;
  u32 dim_;
  U32 row_lane_, column_lane_;
};

}  // namespace

bool tiled_attention(Lower& l, const Attention::Attrs& a) {
  const AttentionCall call(l, a, 3);
  const AttentionSizes& n = call.n;
  const AttentionFrame& f = call.f;
  const auto dim = static_cast<u32>(n.dim);
  const auto shape = choose_tile(l, call, n.queries, n.keys, [&](const TileShape& t) {
    return (t.rows + 2 * t.columns()) * dim + t.scores();
  });
  if (!shape) return false;

  kernel::Kernel k = kernel::trace("attention_tiles", l.target(), shape->lanes(), [&] {
    const ForwardParams in(l, call);
    const OwnBlock own(f, shape->rows, n.heads, n.queries);
    const Value q_at = call.query_rows(own.b, own.h);
    const Value kv_at = call.shared_key_rows(own.b, own.h);

    const Tile tile(f, *shape);
    const Shared mine(f.value, shape->rows * dim), keys(f.value, shape->columns() * dim),
        values(f.value, shape->columns() * dim), weights(f.value, shape->scores());
    tile.load(mine, shape->rows, in.q, q_at, call.qs.row, own.first, n.queries, &in.scale);
    std::vector<VarValue> sums = tile.zeros(), peak, total;
    std::vector<Value> query, safe_query;
    for (u32 i = 0; i < kRows; ++i) {
      peak.emplace_back(f.minus_infinity());
      total.emplace_back(f.number(0));
      query.push_back(own.first + kernel::cast(tile.row(i), f.type));
      safe_query.push_back(kernel::min(query[i], f.at(n.queries - 1)));
    }
    kernel::For(
        f.at(0), key_blocks(f, shape->rows, shape->columns(), a.causal, own.first), f.at(1),
        [&](const Value& j) {
          const Value first = j * f.at(shape->columns());
          kernel::barrier();
          tile.load(keys, shape->columns(), in.key, kv_at, call.ks.row, first, n.keys);
          tile.load(values, shape->columns(), in.value, kv_at, call.ks.row, first, n.keys);
          kernel::barrier();
          const Scores scores = tile.products(mine, keys);
          std::vector<Value> p;
          for (u32 i = 0; i < kRows; ++i) {
            Value top = peak[i].get();
            std::vector<Value> x;
            for (u32 c = 0; c < shape->each; ++c) {
              const Value at = first + kernel::cast(tile.column(c), f.type);
              const Value safe = kernel::min(at, f.at(n.keys - 1));
              Value s = masked(f, in.mask, a.causal, scores[i * shape->each + c].get(), own.b,
                               own.h, safe_query[i], safe);
              if (n.keys % shape->columns() != 0) {
                s = kernel::select(at < f.at(n.keys), s, f.minus_infinity());
              }
              x.push_back(s);
              top = kernel::max(top, s);
            }
            top = over_lanes(top, kColumns,
                             [](const Value& u, const Value& v) { return kernel::max(u, v); });
            // A row without a key so far stays at nothing.
            const Value shift = kernel::select(top == f.minus_infinity(), f.number(0), top);
            const Value fade = kernel::exp(peak[i].get() - shift);
            Value sum = f.number(0);
            for (Value& s : x) {
              s = kernel::exp(s - shift);
              sum = sum + s;
              p.push_back(s);
            }
            sum = over_lanes(sum, kColumns, [](const Value& u, const Value& v) { return u + v; });
            total[i].set(total[i].get() * fade + sum);
            peak[i].set(top);
            tile.scale_row(sums, i, fade);
          }
          tile.store_scores(weights, p);
          kernel::barrier();
          tile.accumulate(sums, weights, values);
        });
    for (u32 i = 0; i < kRows; ++i) {
      const Value sum = total[i].get();
      const Bool none(sum == f.number(0));
      tile.scale_row(sums, i, kernel::select(none, f.number(0), f.number(1) / sum));
      const Bool writes = Bool(query[i] < f.at(n.queries)) & (tile.column(0) == U32(0));
      kernel::If(writes, [&] {
        in.lse.store(own.bh * f.at(n.queries) + query[i],
                     kernel::select(none, f.minus_infinity(), peak[i].get() + kernel::log(sum)));
      });
    }
    tile.store(in.out, q_at, call.qs.row, own.first, n.queries, sums);
  });
  l.explain(describe(call, *shape, a.causal));
  call.launch(l, std::move(k), n.batch * n.heads * OwnBlock::blocks(shape->rows, n.queries),
              ForwardParams::args(l), 4);
  return true;
}

bool tiled_query_gradient(Lower& l, const Attention::Attrs& a) {
  const AttentionCall call(l, a, 6);
  const AttentionSizes& n = call.n;
  const AttentionFrame& f = call.f;
  const auto dim = static_cast<u32>(n.dim);
  const auto values_size = [&](const TileShape& t) {
    return std::max(t.columns() * dim, t.scores());
  };
  const auto shape = choose_tile(l, call, n.queries, n.keys, [&](const TileShape& t) {
    return (2 * t.rows + t.columns()) * dim + values_size(t);
  });
  if (!shape) return false;

  kernel::Kernel k = kernel::trace("attention_dq_tiles", l.target(), shape->lanes(), [&] {
    const QueryGradientParams in(l, call);
    const OwnBlock own(f, shape->rows, n.heads, n.queries);
    const Value q_at = call.query_rows(own.b, own.h);
    const Value kv_at = call.shared_key_rows(own.b, own.h);

    const Tile tile(f, *shape);
    const Shared mine(f.value, shape->rows * dim), my_grad(f.value, shape->rows * dim),
        keys(f.value, shape->columns() * dim), values(f.value, values_size(*shape));
    tile.load(mine, shape->rows, in.q, q_at, call.qs.row, own.first, n.queries, &in.scale);
    tile.load(my_grad, shape->rows, in.grad, q_at, call.qs.row, own.first, n.queries);
    std::vector<VarValue> sums = tile.zeros();
    std::vector<Value> query, shift, mean;
    for (u32 i = 0; i < kRows; ++i) {
      query.push_back(
          kernel::min(own.first + kernel::cast(tile.row(i), f.type), f.at(n.queries - 1)));
      const Value at = own.bh * f.at(n.queries) + query[i];
      const Value sum = kernel::cast(in.lse.load(at), f.value);
      // A row without keys has no probabilities.
      shift.push_back(shift_of(f, sum));
      mean.push_back(kernel::cast(in.delta.load(at), f.value));
    }
    kernel::For(f.at(0), key_blocks(f, shape->rows, shape->columns(), a.causal, own.first), f.at(1),
                [&](const Value& j) {
                  const Value first = j * f.at(shape->columns());
                  kernel::barrier();
                  tile.load(keys, shape->columns(), in.key, kv_at, call.ks.row, first, n.keys);
                  tile.load(values, shape->columns(), in.value, kv_at, call.ks.row, first, n.keys);
                  kernel::barrier();
                  const Scores turns = tile.products(my_grad, values),
                               scores = tile.products(mine, keys);
                  std::vector<Value> ds;
                  for (u32 i = 0; i < kRows; ++i) {
                    for (u32 c = 0; c < shape->each; ++c) {
                      const Value at = first + kernel::cast(tile.column(c), f.type);
                      const Value safe = kernel::min(at, f.at(n.keys - 1));
                      Value s = masked(f, in.mask, a.causal, scores[i * shape->each + c].get(),
                                       own.b, own.h, query[i], safe);
                      if (n.keys % shape->columns() != 0) {
                        s = kernel::select(at < f.at(n.keys), s, f.minus_infinity());
                      }
                      ds.push_back(kernel::exp(s - shift[i]) *
                                   (turns[i * shape->each + c].get() - mean[i]) * in.scale);
                    }
                  }
                  kernel::barrier();
                  tile.store_scores(values, ds);
                  kernel::barrier();
                  tile.accumulate(sums, values, keys);
                });
    tile.store(in.out, q_at, call.qs.row, own.first, n.queries, sums);
  });
  l.explain(describe(call, *shape, a.causal));
  call.launch(l, std::move(k), n.batch * n.heads * OwnBlock::blocks(shape->rows, n.queries),
              QueryGradientParams::args(l), 6);
  return true;
}

bool tiled_key_gradient(Lower& l, const Attention::Attrs& a) {
  const AttentionCall call(l, a, 6);
  const AttentionSizes& n = call.n;
  const AttentionFrame& f = call.f;
  const i64 sharing = n.heads / n.kv_heads;
  const auto dim = static_cast<u32>(n.dim);
  const auto value_size = [&](const TileShape& t) {
    return std::max(t.rows * dim, 2 * t.scores());
  };
  const auto shape = choose_tile(l, call, n.keys, n.queries, [&](const TileShape& t) {
    return (t.rows + 2 * t.columns()) * dim + value_size(t);
  });
  if (!shape) return false;

  kernel::Kernel k = kernel::trace("attention_dkv_tiles", l.target(), shape->lanes(), [&] {
    const KeyGradientParams in(l, call);
    const OwnBlock own(f, shape->rows, n.kv_heads, n.keys);
    const Value k_at = call.key_rows(own.b, own.h);

    const Tile tile(f, *shape);
    // Scores take the place of the values, which are read again for every block.
    const Shared my_key(f.value, shape->rows * dim), my_value(f.value, value_size(*shape)),
        queries(f.value, shape->columns() * dim), grads(f.value, shape->columns() * dim);
    const u32 changes = 0, weights = shape->scores();
    tile.load(my_key, shape->rows, in.key, k_at, call.ks.row, own.first, n.keys, &in.scale);
    std::vector<VarValue> key_sums = tile.zeros(), value_sums = tile.zeros();
    std::vector<Value> my_row;
    for (u32 i = 0; i < kRows; ++i) {
      my_row.push_back(
          kernel::min(own.first + kernel::cast(tile.row(i), f.type), f.at(n.keys - 1)));
    }
    // Causal: queries before the first key of the tile see none of it.
    const i64 blocks = ceil_div(n.queries, shape->columns());
    const Value begin = a.causal ? own.first / f.at(shape->columns()) : f.at(0);
    kernel::For(f.at(0), f.at(sharing), f.at(1), [&](const Value& share) {
      const Value h = own.h * f.at(sharing) + share;
      const Value q_at = call.query_rows(own.b, h);
      const Value rows_at = call.query_numbers(own.b, h);
      kernel::For(begin, f.at(blocks), f.at(1), [&](const Value& block) {
        const Value first = block * f.at(shape->columns());
        kernel::barrier();
        tile.load(queries, shape->columns(), in.q, q_at, call.qs.row, first, n.queries);
        tile.load(grads, shape->columns(), in.grad, q_at, call.qs.row, first, n.queries);
        tile.load(my_value, shape->rows, in.value, k_at, call.ks.row, own.first, n.keys);
        kernel::barrier();
        // Few registers are left beside the results: what is not needed at once waits in memory.
        {
          const Scores turns = tile.products(my_value, grads);
          kernel::barrier();
          std::vector<Value> own_turns;
          for (const VarValue& t : turns) own_turns.push_back(t.get());
          tile.store_scores(my_value, own_turns, changes);
        }
        const Scores scores = tile.products(my_key, queries);
        for (u32 c = 0; c < shape->each; ++c) {
          const Value at = first + kernel::cast(tile.column(c), f.type);
          const Value query = kernel::min(at, f.at(n.queries - 1));
          const Value sum = kernel::cast(in.lse.load(rows_at + query), f.value);
          const Value mean = kernel::cast(in.delta.load(rows_at + query), f.value);
          Value none = sum == f.minus_infinity();
          if (n.queries % shape->columns() != 0) none = none | (at >= f.at(n.queries));
          const Value shift = kernel::select(none, -f.minus_infinity(), sum);
          for (u32 i = 0; i < kRows; ++i) {
            const Value x = masked(f, in.mask, a.causal, scores[i * shape->each + c].get(), own.b,
                                   h, query, my_row[i]);
            const Value p = kernel::exp(x - shift);
            const U32 turn = tile.score_at(i, c, changes);
            my_value.store(turn, p * (my_value.load(turn) - mean) * in.scale);
            my_value.store(tile.score_at(i, c, weights), p);
          }
        }
        kernel::barrier();
        tile.accumulate(value_sums, my_value, grads, weights);
        tile.accumulate(key_sums, my_value, queries, changes);
      });
    });
    tile.store(in.out_key, k_at, call.ks.row, own.first, n.keys, key_sums);
    tile.store(in.out_value, k_at, call.ks.row, own.first, n.keys, value_sums);
  });
  l.explain(describe(call, *shape, a.causal));
  call.launch(l, std::move(k), n.batch * n.kv_heads * OwnBlock::blocks(shape->rows, n.keys),
              KeyGradientParams::args(l), 8);
  return true;
}

}  // namespace oa::ml::matrix
