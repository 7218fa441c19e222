// What the attention kernels share while one is traced: sizes, where rows lie, the mask.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

#include "oa/graph/lower.h"
#include "oa/matrix/kernel_tools.h"
#include "oa/ml/matrix/attention_kernels.h"

namespace oa::ml::matrix {

using kernel::Value;

struct AttentionSizes {
  i64 batch, heads, kv_heads, queries, keys, dim;

  static AttentionSizes of(const Shape& q, const Shape& k, bool heads_inner) {
    const u32 h = heads_inner ? 2 : 1, s = heads_inner ? 1 : 2;
    return {q[0], q[h], k[h], q[s], k[s], q[3]};
  }
};

// Where row (b, h, s) of an operand begins.
struct AttentionRows {
  AttentionRows(i64 heads, i64 length, i64 dim, bool heads_inner)
      : batch(heads * length * dim),
        head(heads_inner ? dim : length * dim),
        row(heads_inner ? heads * dim : dim) {}
  i64 batch, head, row;
};

// Everything that the bodies of the kernels share while one is traced.
struct AttentionFrame {
  kernel::Scalar elem;   // in memory
  kernel::Scalar value;  // in registers
  kernel::Scalar type;   // of positions
  AttentionSizes n;

  Value at(i64 x) const { return oa::matrix::index(type, x); }
  Value number(f64 x) const { return kernel::constant(value, x); }
  Value minus_infinity() const { return number(-std::numeric_limits<f64>::infinity()); }
};

// The mask's element for (b, h, i, j), if operand `input` is there; extents of 1 repeat.
struct AttentionMask {
  // Makes the kernel's parameter.
  AttentionMask(const graph::Lower& l, u32 input) {
    if (input >= l.count()) return;
    buffer = kernel::param_buffer(graph::element_scalar(l.in(input).dtype));
    shape = l.in(input).shape;
  }
  Value operator()(const AttentionFrame& f, const Value& b, const Value& h, const Value& i,
                   const Value& j) const {
    const Value* const coords[] = {&b, &h, &i, &j};
    Value position = f.at(0);
    i64 stride = 1;
    for (u32 a = 4; a-- > 0;) {
      if (shape[a] != 1) position = position + *coords[a] * f.at(stride);
      stride *= shape[a];
    }
    return kernel::cast(buffer->load(position), f.value);
  }
  std::optional<kernel::Buffer> buffer;
  Shape shape;
};

// A call of one of the kernels.
struct AttentionCall {
  // The mask is operand `mask`, if that exists.
  AttentionCall(const graph::Lower& l, const Attention::Attrs& a, u32 mask)
      : n(AttentionSizes::of(l.in(0).shape, l.in(1).shape, a.heads_inner)),
        qs(n.heads, n.queries, n.dim, a.heads_inner),
        ks(n.kv_heads, n.keys, n.dim, a.heads_inner),
        mask_input(mask) {
    const kernel::Scalar elem = graph::element_scalar(l.in(0).dtype);
    i64 most = 0;
    for (u32 i = 0; i < l.count(); ++i) most = std::max(most, l.in(i).shape.elements());
    f = {elem, kernel::value_scalar(elem), oa::matrix::index_type(most), n};
    pairs = static_cast<f64>(n.batch * n.heads) * static_cast<f64>(n.queries * n.keys) *
            (a.causal ? 0.5 : 1);
  }

  kernel::Buffer operand() const { return kernel::param_buffer(f.elem); }

  // Where the rows of a head begin: of queries, of the key head `kv`, of the key head that query
  // head `h` shares, and of what there is one of for each query.
  Value query_rows(const Value& b, const Value& h) const {
    return b * f.at(qs.batch) + h * f.at(qs.head);
  }
  Value key_rows(const Value& b, const Value& kv) const {
    return b * f.at(ks.batch) + kv * f.at(ks.head);
  }
  Value shared_key_rows(const Value& b, const Value& h) const {
    return key_rows(b, h / f.at(n.heads / n.kv_heads));
  }
  Value query_numbers(const Value& b, const Value& h) const {
    return (b * f.at(n.heads) + h) * f.at(n.queries);
  }

  // The work in words, behind what a kernel says of itself.
  std::string sizes(bool causal) const {
    return fmt::format("{} x {} heads, {} queries and {} keys of {}{}", n.batch, n.heads, n.queries,
                       n.keys, n.dim, causal ? ", keys behind a query left out" : "");
  }

  // `flops`: for each pair of a query and a key that see each other, and element of a row.
  void launch(graph::Lower& l, kernel::Kernel k, i64 groups, std::vector<graph::ArgRef> args,
              f64 flops) const {
    if (mask_input < l.count()) args.push_back(l.input(mask_input));
    l.launch(std::move(k), groups, std::move(args), flops * pairs * static_cast<f64>(n.dim));
  }

  AttentionSizes n;
  AttentionRows qs, ks;
  AttentionFrame f{};
  u32 mask_input;
  f64 pairs = 0;
};

// The rows of a head that a workgroup owns: workgroups go block by block over the rows of each
// head.
struct OwnBlock {
  OwnBlock(const AttentionFrame& f, i64 rows, i64 heads, i64 length) {
    const i64 count = blocks(rows, length);
    const Value g = kernel::cast(kernel::group(), f.type);
    bh = g / f.at(count);
    first = g % f.at(count) * f.at(rows);
    b = bh / f.at(heads);
    h = bh % f.at(heads);
  }
  static i64 blocks(i64 rows, i64 length) { return oa::matrix::ceil_div(length, rows); }
  Value bh, b, h;
  Value first;  // row of the block
};

// How many blocks of `columns` keys the queries of a block of `rows` from `first` on see.
inline Value key_blocks(const AttentionFrame& f, i64 rows, i64 columns, bool causal,
                        const Value& first) {
  const Value all = f.at(f.n.keys);
  const Value end = causal ? kernel::min(first + f.at(rows), all) : all;
  return (end + f.at(columns - 1)) / f.at(columns);
}

// What is taken from a row's scores for its probabilities: its logarithm of the sum of
// exponentials, or infinity for a row without keys, which has none.
inline Value shift_of(const AttentionFrame& f, const Value& lse) {
  return kernel::select(lse == f.minus_infinity(), -f.minus_infinity(), lse);
}

// Combines what `lanes` neighbouring lanes (a power of two within a subgroup) have.
inline Value over_lanes(Value v, u32 lanes,
                        const std::function<Value(const Value&, const Value&)>& combine) {
  for (u32 apart = 1; apart < lanes; apart *= 2) v = combine(v, kernel::shuffle_xor(v, apart));
  return v;
}

// The parameters of the kernels, in order, and the arguments that a launch gives for them; the
// mask, if any, comes last.
struct ForwardParams {
  ForwardParams(const graph::Lower& l, const AttentionCall& c)
      : q(c.operand()),
        key(c.operand()),
        value(c.operand()),
        out(c.operand()),
        lse(kernel::param_buffer(graph::element_scalar(l.out(1).dtype))),
        scale(kernel::cast(kernel::param_f32(), c.f.value)),
        mask(l, c.mask_input) {}
  static std::vector<graph::ArgRef> args(graph::Lower& l) {
    return {l.input(0), l.input(1), l.input(2), l.output(0), l.output(1), l.scalar(0)};
  }
  kernel::Buffer q, key, value, out, lse;
  Value scale;
  AttentionMask mask;
};

struct QueryGradientParams {
  QueryGradientParams(const graph::Lower& l, const AttentionCall& c)
      : q(c.operand()),
        key(c.operand()),
        value(c.operand()),
        grad(c.operand()),
        lse(kernel::param_buffer(graph::element_scalar(l.in(4).dtype))),
        delta(kernel::param_buffer(graph::element_scalar(l.in(5).dtype))),
        out(c.operand()),
        scale(kernel::cast(kernel::param_f32(), c.f.value)),
        mask(l, c.mask_input) {}
  static std::vector<graph::ArgRef> args(graph::Lower& l) {
    return {l.input(0), l.input(1), l.input(2),  l.input(3),
            l.input(4), l.input(5), l.output(0), l.scalar(0)};
  }
  kernel::Buffer q, key, value, grad, lse, delta, out;
  Value scale;
  AttentionMask mask;
};

struct KeyGradientParams {
  KeyGradientParams(const graph::Lower& l, const AttentionCall& c)
      : q(c.operand()),
        key(c.operand()),
        value(c.operand()),
        grad(c.operand()),
        lse(kernel::param_buffer(graph::element_scalar(l.in(4).dtype))),
        delta(kernel::param_buffer(graph::element_scalar(l.in(5).dtype))),
        out_key(c.operand()),
        out_value(c.operand()),
        scale(kernel::cast(kernel::param_f32(), c.f.value)),
        mask(l, c.mask_input) {}
  static std::vector<graph::ArgRef> args(graph::Lower& l) {
    return {l.input(0), l.input(1),  l.input(2),  l.input(3), l.input(4),
            l.input(5), l.output(1), l.output(2), l.scalar(0)};
  }
  kernel::Buffer q, key, value, grad, lse, delta, out_key, out_value;
  Value scale;
  AttentionMask mask;
};

// The score of query i and key j as the softmax takes it.
inline Value masked(const AttentionFrame& f, const AttentionMask& mask, bool causal, Value score,
                    const Value& b, const Value& h, const Value& i, const Value& j) {
  if (mask.buffer) score = score + mask(f, b, h, i, j);
  if (causal) score = kernel::select(j > i, f.minus_infinity(), score);
  return score;
}

}  // namespace oa::ml::matrix
