// A lane owns a query row (or a key row, for the gradients of k and v) and walks over the other
// side in blocks; its row and its sums lie in workgroup memory, a column per lane, and the rows of
// the other side are the same for all lanes. Nothing passes between lanes, so there is no barrier,
// and on the CPU a block is a chain of FMAs of a gang with a broadcast element.
#include "oa/ml/matrix/attention_kernels.h"

#include <limits>
#include <optional>

#include "oa/kernel/math.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/kernel_tools.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/matrix/attention_fragments.h"
#include "oa/ml/matrix/attention_frame.h"
#include "oa/ml/matrix/attention_tiled.h"

namespace oa::ml::matrix {
namespace {

using namespace oa::matrix;  // NOLINT: the ops and kernel tools of the layer below
using graph::ArgRef;
using graph::Infer;
using graph::Lower;
using graph::Samples;
using kernel::Bool;
using kernel::Buffer;
using kernel::Shared;
using kernel::U32;
using kernel::Value;
using kernel::VarValue;

constexpr i64 kBlock = 8;  // rows of the other side that are worked on together

// Positions and rows of the kernels whose lanes own a row each.
struct Frame : AttentionFrame {
  i64 width;

  Value lane() const { return kernel::cast(kernel::lane(), type); }
  // A position that is the same in every lane. In 64 bits constant distances fold into the loads.
  Value wide(const Value& x) const { return kernel::cast(x, kernel::Scalar::U64); }
  Value wide(i64 x) const { return index(kernel::Scalar::U64, x); }

  // Calls body(d) for every element of a row, a few per turn of the loop.
  void for_dim(const std::function<void(const Value&)>& body) const {
    const i64 unroll = n.dim % 4 == 0 ? 4 : n.dim % 2 == 0 ? 2 : 1;
    kernel::For(at(0), at(n.dim), at(unroll), [&](const Value& d) {
      for (i64 u = 0; u < unroll; ++u) body(u == 0 ? d : d + at(u));
    });
  }
  // Calls body(first, rows) for blocks of begin .. end; rows is kBlock, then 1 for what is left.
  void for_blocks(const Value& begin, const Value& end,
                  const std::function<void(const Value&, i64)>& body) const {
    const Value full = begin + (end - begin) / at(kBlock) * at(kBlock);
    kernel::For(begin, full, at(kBlock), [&](const Value& i) { body(i, kBlock); });
    kernel::For(full, end, at(1), [&](const Value& i) { body(i, 1); });
  }
  // The row that begins at `at`, which differs between lanes: four elements are one access.
  void read_row(const Buffer& from, const Value& at_row,
                const std::function<void(const Value& d, const Value& x)>& use) const {
    const u32 together = n.dim % 4 == 0 ? 4 : 1;
    kernel::For(at(0), at(n.dim), at(together), [&](const Value& d) {
      const Value x = kernel::cast(from.load(at_row + d, together), value);
      for (u32 u = 0; u < together; ++u) {
        use(u == 0 ? d : d + at(u), together == 1 ? x : kernel::extract(x, u));
      }
    });
  }
  void write_row(const Buffer& to, const Value& at_row,
                 const std::function<Value(const Value& d)>& element) const {
    const u32 together = n.dim % 4 == 0 ? 4 : 1;
    kernel::For(at(0), at(n.dim), at(together), [&](const Value& d) {
      std::vector<Value> x;
      for (u32 u = 0; u < together; ++u) x.push_back(element(u == 0 ? d : d + at(u)));
      to.store(at_row + d, together == 1 ? x[0] : kernel::vec(x));
    });
  }
  // A lane's own column of a row in workgroup memory.
  Value column(const Value& d) const { return d * at(width) + lane(); }
};

// Lanes of a workgroup whose `arrays` columns of `dim` elements fit the workgroup's memory.
u32 width_for(const kernel::Target& t, i64 dim, u32 arrays, kernel::Scalar value) {
  u32 width = t.is_cpu() ? t.width : std::max<u32>(t.subgroup, 32);
  const u64 row = static_cast<u64>(dim) * arrays * kernel::size_bytes(value);
  while (width > 1 && row * width > t.shared_bytes) width /= 2;
  return width;
}

void need_operands(const Infer& in, u32 count) {
  for (u32 i = 0; i < count; ++i) {
    if (in.shape(i).rank() != 4) {
      in.reject("operand {} has the wrong rank, got {}, expected rank 4", i, in.shape(i));
    }
    if (in.dtype(i) != in.dtype(0) || !is_float(in.dtype(i))) {
      in.reject("operand {} has the wrong dtype, got {}, expected {}", i, token(in.dtype(i)),
                is_float(in.dtype(0)) ? token(in.dtype(0)) : "a float");
    }
  }
}

void need_heads(const Infer& in, bool heads_inner) {
  const Shape &q = in.shape(0), &k = in.shape(1);
  const u32 h = heads_inner ? 2 : 1;
  if (in.shape(2) != k || q[0] != k[0] || q[3] != k[3] || k[h] == 0 || q[h] % k[h] != 0) {
    in.reject(
        "operands do not fit, got q {}, k {}, v {}, expected equal batches and head sizes, k like "
        "v, and key heads that divide the query heads",
        q, k, in.shape(2));
  }
}

void need_mask(const Infer& in, u32 i, const AttentionSizes& n) {
  if (i >= in.count()) return;
  const Shape full{n.batch, n.heads, n.queries, n.keys};
  if (in.shape(i).rank() != 4 || broadcast_shapes(in.op(), in.shape(i), full) != full ||
      !is_float(in.dtype(i))) {
    in.reject("mask does not fit, got {} {}, expected a float that broadcasts to {}",
              token(in.dtype(i)), in.shape(i), full);
  }
}

Shape row_shape(const AttentionSizes& n) { return {n.batch, n.heads, n.queries}; }

struct Setup : AttentionCall {
  // A lane keeps `arrays` columns in workgroup memory; the mask is operand `mask`, if any.
  Setup(const Lower& l, const Attention::Attrs& a, u32 arrays, u32 mask)
      : AttentionCall(l, a, mask),
        frame{AttentionCall::f, width_for(l.target(), n.dim, arrays, AttentionCall::f.value)} {}
  u32 width() const { return static_cast<u32>(frame.width); }
  u32 cells() const { return static_cast<u32>(n.dim * frame.width); }
  void explain(Lower& l, std::string_view own, bool causal) const {
    l.explain(
        fmt::format("{}; a lane owns a {} row, {} lanes a workgroup, {} rows of the other "
                    "side together{}",
                    sizes(causal), own, frame.width, kBlock,
                    l.target().is_cpu() ? "" : "; tiles want f32 and rows of a multiple of 32"));
  }

  Frame frame;
};

// The row that a lane owns.
struct OwnRow : OwnBlock {
  OwnRow(const Frame& f, i64 heads, i64 length) : OwnBlock(f, f.width, heads, length) {
    row = first + f.lane();
    safe = row;
    if (length % f.width == 0) return;
    inside = row < f.at(length);
    safe = kernel::select(*inside, row, f.at(0));
  }
  void if_inside(const std::function<void()>& body) const {
    if (inside) {
      kernel::If(Bool(*inside), body);
    } else {
      body();
    }
  }
  Value row;
  std::optional<Value> inside;  // if not all are
  Value safe;                   // the row, or 0 where there is none
};

void forward_kernel(Lower& l, const Attention::Attrs& a) {
  const Setup setup(l, a, 2, 3);
  const AttentionSizes& n = setup.n;
  const Frame& f = setup.frame;
  const AttentionRows &qs = setup.qs, &ks = setup.ks;

  kernel::Kernel k = kernel::trace("attention", l.target(), setup.width(), [&] {
    const ForwardParams in(l, setup);

    const OwnRow own(f, n.heads, n.queries);
    const Value &b = own.b, &h = own.h, &first = own.first, &safe_row = own.safe;
    const Value q_at = setup.query_rows(b, h) + safe_row * f.at(qs.row);
    const Value kv_at = setup.shared_key_rows(b, h);

    const Shared mine(f.value, setup.cells()), sums(f.value, setup.cells());
    f.read_row(in.q, q_at, [&](const Value& d, const Value& x) {
      mine.store(f.column(d), x * in.scale);
      sums.store(f.column(d), f.number(0));
    });
    const VarValue peak(f.minus_infinity()), total(f.number(0));
    const Value end = a.causal ? kernel::min(first + f.at(f.width), f.at(n.keys)) : f.at(n.keys);
    f.for_blocks(f.at(0), end, [&](const Value& j0, i64 rows) {
      const Value base = f.wide(kv_at + j0 * f.at(ks.row));
      std::vector<VarValue> score;
      for (i64 r = 0; r < rows; ++r) score.emplace_back(f.number(0));
      f.for_dim([&](const Value& d) {
        const Value x = mine.load(f.column(d)), from = base + f.wide(d);
        for (i64 r = 0; r < rows; ++r) {
          const Value e = kernel::cast(in.key.load(from + f.wide(r * ks.row)), f.value);
          score[static_cast<size_t>(r)].set(kernel::fma(x, e, score[static_cast<size_t>(r)].get()));
        }
      });
      std::vector<Value> p;
      Value top = peak.get();
      for (i64 r = 0; r < rows; ++r) {
        p.push_back(masked(f, in.mask, a.causal, score[static_cast<size_t>(r)].get(), b, h,
                           safe_row, j0 + f.at(r)));
        top = kernel::max(top, p.back());
      }
      // A row without a key so far stays at nothing.
      const Value shift = kernel::select(top == f.minus_infinity(), f.number(0), top);
      const Value fade = kernel::exp(peak.get() - shift);
      Value sum = total.get() * fade;
      for (Value& x : p) {
        x = kernel::exp(x - shift);
        sum = sum + x;
      }
      peak.set(top);
      total.set(sum);
      f.for_dim([&](const Value& d) {
        const Value from = base + f.wide(d);
        Value y = sums.load(f.column(d)) * fade;
        for (i64 r = 0; r < rows; ++r) {
          const Value e = kernel::cast(in.value.load(from + f.wide(r * ks.row)), f.value);
          y = kernel::fma(p[static_cast<size_t>(r)], e, y);
        }
        sums.store(f.column(d), y);
      });
    });
    const Value sum = total.get();
    const Bool none(sum == f.number(0));
    const Value inverse = kernel::select(none, f.number(0), f.number(1) / sum);
    own.if_inside([&] {
      f.write_row(in.out, q_at, [&](const Value& d) { return sums.load(f.column(d)) * inverse; });
      in.lse.store(own.bh * f.at(n.queries) + own.row,
                   kernel::select(none, f.minus_infinity(), peak.get() + kernel::log(sum)));
    });
  });
  setup.explain(l, "query", a.causal);
  setup.launch(l, std::move(k), n.batch * n.heads * ceil_div(n.queries, f.width),
               ForwardParams::args(l), 4);
}

// The gradient of q: a lane owns a query row.
void query_gradient(Lower& l, const Attention::Attrs& a) {
  const Setup setup(l, a, 3, 6);
  const AttentionSizes& n = setup.n;
  const Frame& f = setup.frame;
  const AttentionRows &qs = setup.qs, &ks = setup.ks;

  kernel::Kernel k = kernel::trace("attention_dq", l.target(), setup.width(), [&] {
    const QueryGradientParams in(l, setup);

    const OwnRow own(f, n.heads, n.queries);
    const Value &b = own.b, &h = own.h, &first = own.first, &safe_row = own.safe;
    const Value q_at = setup.query_rows(b, h) + safe_row * f.at(qs.row);
    const Value kv_at = setup.shared_key_rows(b, h);
    const Value row_at = own.bh * f.at(n.queries) + safe_row;
    const Value sum = kernel::cast(in.lse.load(row_at), f.value);
    const Value mean = kernel::cast(in.delta.load(row_at), f.value);
    // A row without keys has no probabilities.
    const Value shift = shift_of(f, sum);

    const u32 cells = setup.cells();
    const Shared mine(f.value, cells), my_grad(f.value, cells), sums(f.value, cells);
    f.read_row(in.q, q_at, [&](const Value& d, const Value& x) {
      mine.store(f.column(d), x * in.scale);
      sums.store(f.column(d), f.number(0));
    });
    f.read_row(in.grad, q_at,
               [&](const Value& d, const Value& x) { my_grad.store(f.column(d), x); });
    const Value end = a.causal ? kernel::min(first + f.at(f.width), f.at(n.keys)) : f.at(n.keys);
    f.for_blocks(f.at(0), end, [&](const Value& j0, i64 rows) {
      const Value base = f.wide(kv_at + j0 * f.at(ks.row));
      std::vector<VarValue> score, change;
      for (i64 r = 0; r < rows; ++r) {
        score.emplace_back(f.number(0));
        change.emplace_back(f.number(0));
      }
      f.for_dim([&](const Value& d) {
        const Value x = mine.load(f.column(d)), y = my_grad.load(f.column(d)),
                    from = base + f.wide(d);
        for (i64 r = 0; r < rows; ++r) {
          const auto s = static_cast<size_t>(r);
          const Value there = from + f.wide(r * ks.row);
          score[s].set(kernel::fma(x, kernel::cast(in.key.load(there), f.value), score[s].get()));
          change[s].set(
              kernel::fma(y, kernel::cast(in.value.load(there), f.value), change[s].get()));
        }
      });
      std::vector<Value> ds;
      for (i64 r = 0; r < rows; ++r) {
        const auto s = static_cast<size_t>(r);
        const Value x = masked(f, in.mask, a.causal, score[s].get(), b, h, safe_row, j0 + f.at(r));
        ds.push_back(kernel::exp(x - shift) * (change[s].get() - mean) * in.scale);
      }
      f.for_dim([&](const Value& d) {
        const Value from = base + f.wide(d);
        Value y = sums.load(f.column(d));
        for (i64 r = 0; r < rows; ++r) {
          const Value e = kernel::cast(in.key.load(from + f.wide(r * ks.row)), f.value);
          y = kernel::fma(ds[static_cast<size_t>(r)], e, y);
        }
        sums.store(f.column(d), y);
      });
    });
    own.if_inside(
        [&] { f.write_row(in.out, q_at, [&](const Value& d) { return sums.load(f.column(d)); }); });
  });
  setup.explain(l, "query", a.causal);
  setup.launch(l, std::move(k), n.batch * n.heads * ceil_div(n.queries, f.width),
               QueryGradientParams::args(l), 6);
}

// The gradients of k and v: a lane owns a key row and walks over the queries of its heads.
void key_gradient(Lower& l, const Attention::Attrs& a) {
  const Setup setup(l, a, 4, 6);
  const AttentionSizes& n = setup.n;
  const Frame& f = setup.frame;
  const AttentionRows &qs = setup.qs, &ks = setup.ks;
  const i64 sharing = n.heads / n.kv_heads;

  kernel::Kernel k = kernel::trace("attention_dkv", l.target(), setup.width(), [&] {
    const KeyGradientParams in(l, setup);

    const OwnRow own(f, n.kv_heads, n.keys);
    const Value &b = own.b, &kv_head = own.h, &first = own.first, &safe_row = own.safe;
    const Value k_at = setup.key_rows(b, kv_head) + safe_row * f.at(ks.row);

    const u32 cells = setup.cells();
    const Shared my_key(f.value, cells), my_value(f.value, cells), key_sums(f.value, cells),
        value_sums(f.value, cells);
    f.read_row(in.key, k_at, [&](const Value& d, const Value& x) {
      my_key.store(f.column(d), x);
      key_sums.store(f.column(d), f.number(0));
    });
    f.read_row(in.value, k_at, [&](const Value& d, const Value& x) {
      my_value.store(f.column(d), x);
      value_sums.store(f.column(d), f.number(0));
    });
    kernel::For(f.at(0), f.at(sharing), f.at(1), [&](const Value& share) {
      const Value h = kv_head * f.at(sharing) + share;
      const Value q_at = setup.query_rows(b, h);
      const Value rows_at = setup.query_numbers(b, h);
      // Causal: queries before the first key of the block see none of them.
      const Value begin = a.causal ? kernel::min(first, f.at(n.queries)) : f.at(0);
      f.for_blocks(begin, f.at(n.queries), [&](const Value& i0, i64 rows) {
        const Value base = f.wide(q_at + i0 * f.at(qs.row));
        std::vector<VarValue> score, change;
        for (i64 r = 0; r < rows; ++r) {
          score.emplace_back(f.number(0));
          change.emplace_back(f.number(0));
        }
        f.for_dim([&](const Value& d) {
          const Value x = my_key.load(f.column(d)), y = my_value.load(f.column(d));
          const Value from = base + f.wide(d);
          for (i64 r = 0; r < rows; ++r) {
            const auto s = static_cast<size_t>(r);
            const Value there = from + f.wide(r * qs.row);
            score[s].set(kernel::fma(x, kernel::cast(in.q.load(there), f.value), score[s].get()));
            change[s].set(
                kernel::fma(y, kernel::cast(in.grad.load(there), f.value), change[s].get()));
          }
        });
        std::vector<Value> p, ds;
        for (i64 r = 0; r < rows; ++r) {
          const auto s = static_cast<size_t>(r);
          const Value i = i0 + f.at(r);
          const Value sum = kernel::cast(in.lse.load(rows_at + i), f.value);
          const Value mean = kernel::cast(in.delta.load(rows_at + i), f.value);
          const Value shift = shift_of(f, sum);
          const Value x =
              masked(f, in.mask, a.causal, score[s].get() * in.scale, b, h, i, safe_row);
          p.push_back(kernel::exp(x - shift));
          ds.push_back(p.back() * (change[s].get() - mean) * in.scale);
        }
        f.for_dim([&](const Value& d) {
          const Value from = base + f.wide(d);
          Value dk = key_sums.load(f.column(d)), dv = value_sums.load(f.column(d));
          for (i64 r = 0; r < rows; ++r) {
            const auto s = static_cast<size_t>(r);
            const Value there = from + f.wide(r * qs.row);
            dk = kernel::fma(ds[s], kernel::cast(in.q.load(there), f.value), dk);
            dv = kernel::fma(p[s], kernel::cast(in.grad.load(there), f.value), dv);
          }
          key_sums.store(f.column(d), dk);
          value_sums.store(f.column(d), dv);
        });
      });
    });
    own.if_inside([&] {
      f.write_row(in.out_key, k_at, [&](const Value& d) { return key_sums.load(f.column(d)); });
      f.write_row(in.out_value, k_at, [&](const Value& d) { return value_sums.load(f.column(d)); });
    });
  });
  setup.explain(l, "key", a.causal);
  setup.launch(l, std::move(k), n.batch * n.kv_heads * ceil_div(n.keys, f.width),
               KeyGradientParams::args(l), 8);
}

DType statistics_type(DType t) { return t == DType::F64 ? DType::F64 : DType::F32; }

}  // namespace

void Attention::infer(Infer& in, const Attrs& a) {
  need_operands(in, 3);
  need_heads(in, a.heads_inner);
  const AttentionSizes n = AttentionSizes::of(in.shape(0), in.shape(1), a.heads_inner);
  need_mask(in, 3, n);
  in.out(in.dtype(0), in.shape(0));
  in.out(statistics_type(in.dtype(0)), row_shape(n));
}

void Attention::lower(Lower& l, const Attrs& a) {
  if (l.out().shape.elements() == 0 && l.out(1).shape.elements() == 0) return;
  if (!fragment_attention(l, a) && !tiled_attention(l, a)) forward_kernel(l, a);
}

std::vector<graph::TensorRef> Attention::gradient(const graph::Gradient& g, const Attrs& a) {
  std::vector<graph::TensorRef> result(g.inputs.size());
  if (!g.grads[0]) return result;
  const Matrix go = oa::matrix::grad(g), o = oa::matrix::output(g, 0);
  const DType wide = statistics_type(go.dtype());
  Matrix delta = sum(cast(go, wide) * cast(o, wide), -1);
  if (a.heads_inner) delta = transpose(delta, 1, 2);
  std::vector<graph::TensorRef> in = {g.inputs[0], g.inputs[1],  g.inputs[2],
                                      g.grads[0],  g.outputs[1], delta.tensor()};
  if (g.inputs.size() > 3) in.push_back(g.inputs[3]);
  const auto grads = record_all<AttentionBackward>(in, a);
  for (size_t i = 0; i < 3; ++i) result[i] = grads[i];
  return result;
}

void Attention::samples(Samples& s) {
  for (bool inner : {false, true}) {
    const auto shape = [&](i64 b, i64 h, i64 n, i64 d) {
      return inner ? Shape{b, n, h, d} : Shape{b, h, n, d};
    };
    for (DType t : {DType::F32, DType::F64, DType::F16}) {
      s.call({{shape(2, 2, 19, 8), t}, {shape(2, 2, 19, 8), t}, {shape(2, 2, 19, 8), t}},
             Attrs{inner, true, 0.35});
    }
    s.call({{shape(1, 2, 32, 4)}, {shape(1, 2, 32, 4)}, {shape(1, 2, 32, 4)}},
           Attrs{inner, true, 0.5});
    s.call({{shape(1, 4, 5, 3)}, {shape(1, 2, 11, 3)}, {shape(1, 2, 11, 3)}},
           Attrs{inner, false, 0.5});
    s.call({{shape(1, 4, 9, 6)}, {shape(1, 1, 4, 6)}, {shape(1, 1, 4, 6)}, {{1, 4, 1, 4}}},
           Attrs{inner, true, 0.5});
    s.call({{shape(1, 1, 1, 1)}, {shape(1, 1, 1, 1)}, {shape(1, 1, 1, 1)}}, Attrs{inner, true, 1});
  }
  s.call({{{2, 1, 3, 4}}, {{2, 1, 0, 4}}, {{2, 1, 0, 4}}}, Attrs{false, false, 1});
  s.reject({{{2, 3, 4}}, {{2, 3, 4}}, {{2, 3, 4}}}, Attrs{false, false, 1},
           "attention: operand 0 has the wrong rank, got [2, 3, 4], expected rank 4");
  s.reject({{{1, 3, 2, 4}}, {{1, 2, 2, 4}}, {{1, 2, 2, 4}}}, Attrs{false, false, 1},
           "attention: operands do not fit, got q [1, 3, 2, 4], k [1, 2, 2, 4], v [1, 2, 2, 4], "
           "expected equal batches and head sizes, k like v, and key heads that divide the query "
           "heads");
}

void AttentionBackward::infer(Infer& in, const Attrs& a) {
  need_operands(in, 4);
  need_heads(in, a.heads_inner);
  const AttentionSizes n = AttentionSizes::of(in.shape(0), in.shape(1), a.heads_inner);
  for (u32 i : {4u, 5u}) {
    if (in.shape(i) != row_shape(n) || in.dtype(i) != statistics_type(in.dtype(0))) {
      in.reject("operand {} does not fit, got {} {}, expected {} {}", i, token(in.dtype(i)),
                in.shape(i), token(statistics_type(in.dtype(0))), row_shape(n));
    }
  }
  need_mask(in, 6, n);
  for (u32 i = 0; i < 3; ++i) in.out(in.dtype(i), in.shape(i));
}

void AttentionBackward::lower(Lower& l, const Attrs& a) {
  if (l.out(0).shape.elements() > 0 && !fragment_query_gradient(l, a) &&
      !tiled_query_gradient(l, a)) {
    query_gradient(l, a);
  }
  if (l.out(1).shape.elements() > 0 && !fragment_key_gradient(l, a) && !tiled_key_gradient(l, a)) {
    key_gradient(l, a);
  }
}

void AttentionBackward::samples(Samples& s) {
  s.call({{{1, 2, 5, 4}},
          {{1, 2, 7, 4}},
          {{1, 2, 7, 4}},
          {{1, 2, 5, 4}},
          {{1, 2, 5}, DType::F32, 2, 3},
          {{1, 2, 5}}},
         Attrs{false, false, 0.5});
  s.call({{{1, 32, 2, 4}},
          {{1, 32, 2, 4}},
          {{1, 32, 2, 4}},
          {{1, 32, 2, 4}},
          {{1, 2, 32}, DType::F32, 2, 3},
          {{1, 2, 32}}},
         Attrs{true, true, 0.5});
}

}  // namespace oa::ml::matrix
