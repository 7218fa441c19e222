#include "oa/matrix/index.h"

#include <limits>

#include "oa/matrix/all_ops.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index_rules.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {

using graph::AffineMap;
using kernel::Value;

Value out_of_range(const Value& index, i64 limit) {
  if (limit > std::numeric_limits<u32>::max()) {  // every unsigned index fits
    const bool is_signed = index.scalar() == kernel::Scalar::I32;
    return is_signed ? index < kernel::constant_int(kernel::Scalar::I32, 0)
                     : kernel::constant_int(kernel::Scalar::Bool, 0);
  }
  // A negative index is a large unsigned one.
  return kernel::cast(index, kernel::Scalar::U32) >=
         kernel::constant_int(kernel::Scalar::U32, limit);
}

namespace {

// What an op yields at an index that is out of range: NaN where the dtype has it.
Value missing(DType dtype) {
  const kernel::Scalar type = graph::value_scalar(dtype);
  if (!kernel::is_float(type)) return kernel::constant_int(type, 0);
  return kernel::constant(type, std::numeric_limits<f64>::quiet_NaN());
}

template <bool kAnyAxis>
struct Gather {
  static constexpr OpInfo kInfo{.name = kAnyAxis ? "index_select" : "gather",
                                .kind = OpKind::Elementwise,
                                .indexed_inputs = 1,
                                .cost = 3};
  struct Attrs {
    u32 axis;
  };
  static void infer(Infer& in, const Attrs& a) {
    if (in.shape(0).rank() == 0) {
      in.reject("operand 0 has no rows, got shape {}, expected rank 1 or more", in.shape(0));
    }
    need_indices(in, 1);
    const Shape& x = in.shape(0);
    Shape out = joined(axes_of(x, 0, a.axis), in.shape(1));
    out = joined(std::move(out), axes_of(x, a.axis + 1, x.rank()));
    check_shape(in.op(), out, size_bytes(in.dtype(0)));
    in.out(in.dtype(0), out);
  }
  static i64 index_limit(const Infer& in, const Attrs& a) { return in.shape(0)[a.axis]; }
  static Value emit(Emit& e, const Attrs& a) {
    const Shape &x = e.shape(0), &indices = e.shape(1);
    AffineMap at;
    for (u32 i = 0; i < indices.rank(); ++i) at.axes.push_back(e.map().axes[a.axis + i]);
    const Value index = e.input_at(1, at);
    const Value bad = out_of_range(index, x[a.axis]);
    e.check(bad, e.coord(at.flatten(indices, static_cast<u32>(e.constant(0).coef.size()))), index);
    if (x.elements() == 0) return missing(e.out_dtype());
    // Guarded by the index alone: where that is the same for all lanes, they load side by side.
    const Value safe = kernel::select(bad, kernel::literal(index.scalar(), 0), index);
    std::vector<Value> coords;
    for (u32 i = 0; i < x.rank(); ++i) {
      coords.push_back(i == a.axis  ? safe
                       : i < a.axis ? e.coord(i)
                                    : e.coord(i - 1 + indices.rank()));
    }
    const Value element = e.input_indexed(0, coords, {});
    return kernel::select(bad, missing(e.out_dtype()), element);
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    const Matrix x = input(g, 0), indices = input(g, 1);
    // The axes of the indices first, then those of a row.
    const u32 count = indices.rank();
    Dims order;
    for (u32 i = 0; i < count; ++i) order.push_back(a.axis + i);
    for (u32 i = 0; i < grad(g).rank(); ++i) {
      if (i < a.axis || i >= a.axis + count) order.push_back(i);
    }
    const Matrix updates = a.axis == 0 ? grad(g) : permute(grad(g), order);
    const Matrix rows = scatter_add_rows(x.shape()[a.axis], indices, updates);
    if (a.axis == 0) return gradients({rows, {}});
    Dims back;
    for (u32 i = 1; i <= a.axis; ++i) back.push_back(i);
    back.push_back(0);
    for (u32 i = a.axis + 1; i < x.rank(); ++i) back.push_back(i);
    return gradients({permute(rows, back), {}});
  }
  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{7, 5}, t}, {{9}, DType::I32, 0, 6}}, Attrs{0});
    for (DType t : kIntegers) s.call({{{7}}, {{3, 2}, t, 0, 6}}, Attrs{0});
    s.call({{{4, 3}}, {{}, DType::I32, 0, 3}}, Attrs{0});
    s.call({{{4, 3}}, {{0}, DType::I32}}, Attrs{0});
    if (kAnyAxis) s.call({{{2, 6, 3}}, {{2, 2}, DType::U32, 0, 5}}, Attrs{1});
    s.reject({{{}}, {{2}, DType::I32}}, Attrs{0},
             fmt::format("{}: operand 0 has no rows, got shape [], expected rank 1 or more",
                         kInfo.name));
    s.reject({{{3}}, {{2}}}, Attrs{0},
             fmt::format("{}: operand 1 has the wrong dtype, got f32, expected i32, u32 or u8",
                         kInfo.name));
  }
};

void same_rows(const Infer& in, u32 a, u32 b) {
  const Shape &x = in.shape(a), &y = in.shape(b);
  bool fits = x.rank() > 0 && x.rank() == y.rank();
  for (u32 i = 0; fits && i + 1 < x.rank(); ++i) fits = x[i] == y[i];
  if (!fits) {
    in.reject("leading axes differ, got {} and {}, expected equal ones before the last", x, y);
  }
}

struct GatherLastDim {
  static constexpr OpInfo kInfo{
      .name = "gather_last_dim", .kind = OpKind::Elementwise, .indexed_inputs = 1, .cost = 3};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_indices(in, 1);
    same_rows(in, 0, 1);
    in.out(in.dtype(0), in.shape(1));
  }
  static i64 index_limit(const Infer& in, const Attrs&) { return in.shape(0).back(); }
  static Value emit(Emit& e, const Attrs&) {
    const Shape& x = e.shape(0);
    const u32 last = x.rank() - 1;
    const Value index = e.input(1);
    const Value bad = out_of_range(index, x[last]);
    AffineMap row = e.map();
    row.axes.pop_back();
    const auto domain_rank = static_cast<u32>(e.constant(0).coef.size());
    e.check(bad, e.coord(row.flatten(axes_of(x, 0, last), domain_rank)), index);
    const kernel::Scalar type = graph::value_scalar(e.out_dtype());
    if (x.elements() == 0) return kernel::literal(type, 0);
    std::vector<Value> coords;
    for (u32 i = 0; i < last; ++i) coords.push_back(e.coord(i));
    coords.push_back(index);
    const Value element = e.input_indexed(0, coords, !bad);
    return kernel::select(bad, kernel::literal(type, 0), element);
  }
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    return gradients({scatter_add_last_dim(g.inputs[0]->shape().back(), input(g, 1), grad(g)), {}});
  }
  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{3, 7}, t}, {{3, 4}, DType::I32, 0, 6}}, Attrs{});
    s.call({{{5}}, {{11}, DType::U8, 0, 4}}, Attrs{});
    s.reject({{{3, 7}}, {{2, 4}, DType::I32}}, Attrs{},
             "gather_last_dim: leading axes differ, got [3, 7] and [2, 4], expected equal ones "
             "before the last");
  }
};

struct OneHot {
  static constexpr OpInfo kInfo{.name = "one_hot", .kind = OpKind::Elementwise, .cost = 2};
  struct Attrs {
    i64 classes;
    DType dtype;
  };
  static void infer(Infer& in, const Attrs& a) {
    need_indices(in, 0);
    if (a.classes < 0 || a.classes > std::numeric_limits<i32>::max()) {
      in.reject("bad number of classes, got {}, expected 0 to 2147483647", a.classes);
    }
    Shape out = in.shape(0);
    out.push_back(a.classes);
    check_shape(in.op(), out, size_bytes(a.dtype));
    in.out(a.dtype, out);
  }
  static Value emit(Emit& e, const Attrs& a) {
    AffineMap at = e.map();
    at.axes.pop_back();
    const Value index = kernel::cast(e.input_at(0, at), kernel::Scalar::U32);
    const Value here = kernel::cast(e.coord(e.shape(0).rank()), kernel::Scalar::U32) == index;
    return kernel::cast(here, graph::value_scalar(a.dtype));
  }
  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{5}, DType::I32, -1, 4}}, Attrs{4, t});
    s.call({{{2, 3}, DType::U8, 0, 6}}, Attrs{5, DType::F32});
    s.call({{{}, DType::U32, 0, 2}}, Attrs{3, DType::F32});
    s.call({{{3}, DType::I32, 0, 2}}, Attrs{0, DType::F32});
    s.reject({{{3}, DType::I32}}, Attrs{-1, DType::F32},
             "one_hot: bad number of classes, got -1, expected 0 to 2147483647");
  }
};

struct ScatterAddLastDim {
  static constexpr OpInfo kInfo{.name = "scatter_add_last_dim", .kind = OpKind::Composite};
  struct Attrs {
    i64 extent;
  };
  static void infer(Infer& in, const Attrs& a) {
    need_indices(in, 0);
    if (in.shape(0) != in.shape(1) || in.shape(0).rank() == 0) {
      in.reject(
          "shapes do not fit, got indices {} and updates {}, expected equal ones of rank 1 "
          "or more",
          in.shape(0), in.shape(1));
    }
    if (in.dtype(1) == DType::Bool || in.dtype(1) == DType::U8) {
      in.reject("operand 1 has the wrong dtype, got {}, expected a float, i32 or u32",
                token(in.dtype(1)));
    }
    if (a.extent < 0) in.reject("negative extent, got {}, expected 0 or more", a.extent);
    Shape out = in.shape(0);
    out[out.rank() - 1] = a.extent;
    check_shape(in.op(), out, size_bytes(in.dtype(1)));
    in.out(in.dtype(1), out);
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix indices(in[0]), updates(in[1]);
    const Matrix hot = one_hot(indices, a.extent, DType::Bool);
    // Chosen, not multiplied: an update that is not finite stays at its own index.
    const Matrix u = where(hot, updates.unsqueeze(-1), full_like(updates, 0).unsqueeze(-1));
    return {sum(u, -2).tensor()};
  }
  static void samples(Samples& s) {
    for (DType t : {DType::F32, DType::F64, DType::I32, DType::U32}) {
      s.call({{{3, 8}, DType::I32, 0, 4}, {{3, 8}, t}}, Attrs{5});
    }
    s.reject({{{3}, DType::I32}, {{4}}}, Attrs{5},
             "scatter_add_last_dim: shapes do not fit, got indices [3] and updates [4], expected "
             "equal ones of rank 1 or more");
  }
};

template <bool kMasked>
struct AccuracyCount {
  static constexpr OpInfo kInfo{
      .name = kMasked ? "masked_categorical_accuracy_count" : "categorical_accuracy_count",
      .kind = OpKind::Composite};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    const Shape& logits = in.shape(0);
    if (!is_float(in.dtype(0))) {
      in.reject("operand 0 has the wrong dtype, got {}, expected a float", token(in.dtype(0)));
    }
    need_indices(in, 1);
    if (logits.rank() < 2 || logits.back() == 0) {
      in.reject("operand 0 has no classes, got shape {}, expected [..., C] with C of 1 or more",
                logits);
    }
    const Shape rows = axes_of(logits, 0, logits.rank() - 1);
    if (in.shape(1) != rows) {
      in.reject("labels do not fit, got shape {}, expected {}", in.shape(1), rows);
    }
    if (kMasked && (in.shape(2) != rows || in.dtype(2) != DType::F32)) {
      in.reject("mask does not fit, got {} {}, expected f32 {}", token(in.dtype(2)), in.shape(2),
                rows);
    }
    in.out(DType::U32, {1});
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs&) {
    // A large unsigned label wraps to a negative one, which no position equals.
    Matrix hit = equal(argmax(Matrix(in[0]), -1), cast(Matrix(in[1]), DType::I32));
    if (kMasked) {
      const Matrix mask(in[2]);
      hit = logical_and(hit, not_equal(mask, full_like(mask, 0)));
    }
    return {sum(hit).reshape({1}).tensor()};
  }
  static void samples(Samples& s) {
    for (DType t : kFloats) {
      std::vector<SampleOperand> in = {{{9, 5}, t}, {{9}, DType::I32, 0, 4}};
      if (kMasked) in.push_back({{9}, DType::F32, 0, 1, true});
      s.call(std::move(in), Attrs{});
    }
  }
};

}  // namespace

OpList index_ops() {
  return graph::op_list<Gather<false>, Gather<true>, GatherLastDim, OneHot, ScatterAddLastDim,
                        AccuracyCount<false>, AccuracyCount<true>>();
}

Matrix gather(const Matrix& table, const Matrix& indices) {
  return record<Gather<false>>({table, indices}, {0});
}
Matrix index_select(const Matrix& x, const Matrix& indices, i64 axis) {
  return record<Gather<true>>({x, indices}, {resolve_axis("index_select", axis, x.rank())});
}
Matrix gather_last_dim(const Matrix& x, const Matrix& indices) {
  return record<GatherLastDim>({x, indices});
}
Matrix scatter_add_last_dim(i64 extent, const Matrix& indices, const Matrix& updates) {
  return record<ScatterAddLastDim>({indices, updates}, {extent});
}
Matrix one_hot(const Matrix& indices, i64 classes, DType dtype) {
  return record<OneHot>({indices}, {classes, dtype});
}
Matrix categorical_accuracy_count(const Matrix& logits, const Matrix& labels) {
  return record<AccuracyCount<false>>({logits, labels});
}
Matrix masked_categorical_accuracy_count(const Matrix& logits, const Matrix& labels,
                                         const Matrix& mask) {
  return record<AccuracyCount<true>>({logits, labels, mask});
}

}  // namespace oa::matrix
