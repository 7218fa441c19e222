// Short rows: every element counts the elements that come before it (a lane does so for the few
// elements of a tiny row). Long ones: a radix sort of keys whose unsigned order is the order
// wanted, or, where few elements are kept, a search for each of them.
#include "oa/matrix/sort.h"

#include <algorithm>
#include <limits>

#include "oa/matrix/all_ops.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index.h"
#include "oa/matrix/index_rules.h"
#include "oa/matrix/kernel_tools.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/radix_sort.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {
namespace {

using graph::ArgRef;
using graph::Lower;
using kernel::Buffer;
using kernel::U32;
using kernel::Value;

// An unsigned number (U32, or U64 for F64) whose order is the order of the elements.
Value order_key(const Value& x, bool descending) {
  Value key;
  if (kernel::is_float(x.scalar())) {
    const bool wide = x.scalar() == kernel::Scalar::F64;
    const kernel::Scalar type = wide ? kernel::Scalar::U64 : kernel::Scalar::U32;
    const Value zero = kernel::constant_int(type, 0), ones = kernel::constant_int(type, -1);
    const Value sign =
        kernel::constant_int(type, wide ? std::numeric_limits<i64>::min() : i64{1} << 31);
    // By bits, since arithmetic on subnormal numbers may flush them: -0 becomes +0.
    const Value raw = kernel::bitcast(x, type);
    const Value bits = kernel::select(raw == sign, zero, raw);
    const Value flipped = kernel::select((bits & sign) != zero, ~bits, bits | sign);
    key = kernel::select(kernel::is_nan(x), ones, flipped);
  } else if (x.scalar() == kernel::Scalar::I32) {
    key = kernel::bitcast(x, kernel::Scalar::U32) ^ word(i64{1} << 31);
  } else {
    key = kernel::cast(x, kernel::Scalar::U32);  // U32, U8, Bool
  }
  return descending ? ~key : key;
}

u32 key_bits(DType t) {
  switch (t) {
    case DType::F64: return 64;
    case DType::U8: return 8;
    case DType::Bool: return 1;
    default: return 32;
  }
}

// The first `keep` elements of each row in order, and where they were.
struct SortRows {
  static constexpr OpInfo kInfo{.name = "sort", .kind = OpKind::Kernel};
  struct Attrs {
    i64 keep;
    bool descending;
  };
  static void infer(Infer& in, const Attrs& a) {
    Shape out = in.shape(0);
    if (out.back() > std::numeric_limits<i32>::max()) {
      in.reject("rows are too long, got shape {}, expected an extent below 2^31", out);
    }
    out[out.rank() - 1] = a.keep;
    in.out(in.dtype(0), out);
    in.out(DType::I32, out);
  }
  static void lower(Lower& l, const Attrs& a) {
    const i64 n = l.in(0).shape.back();
    const i64 longest = l.target().is_cpu() ? 128 : 256;
    if (n <= kLaneRow && a.keep <= kLaneKeep) {
      l.explain(fmt::format("rows of {} are short: a lane has a row in registers", n));
      by_lane(l, a);
    } else if (n <= longest) {
      l.explain(fmt::format("rows of {} are short: each element counts those before it", n));
      by_counting(l, a);
    } else if (selects(l, a)) {
      by_selection(l, a);
    } else {
      l.explain(fmt::format("rows of {} are long: sorted digit by digit", n));
      by_radix(l, a);
    }
  }

  // The elements that the kept positions came from.
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    if (!g.grads[0]) return {{}};
    return gradients({scatter_add_last_dim(g.inputs[0]->shape().back(), output(g, 1), grad(g))});
  }

  static void samples(Samples& s) {
    for (DType t : kAll) s.call({{{3, 29}, t, -9, 9, true}}, Attrs{29, false});
    s.call({{{5, 7}, DType::F32, -2, 2, true}}, Attrs{3, true});
    s.call({{{2, 300}}}, Attrs{300, true});
    for (DType t : kAll) s.call({{{3, 300}, t, -9, 9, true}}, Attrs{5, true});
    s.call({{{4, 1}}}, Attrs{1, false});
  }

 private:
  static constexpr i64 kLaneRow = 16;  // elements that a lane holds in registers
  static constexpr i64 kLaneKeep = 4;
  static constexpr i64 kMostLooks = i64{1} << 20;  // at elements of a row, by selection

  // A lane has a row, and picks what belongs to each place.
  static void by_lane(Lower& l, const Attrs& a) {
    const i64 n = l.in(0).shape.back(), rows = rows_of(l);
    const kernel::Scalar elem = graph::element_scalar(l.in(0).dtype);
    launch_elements(l, "sort_tiny", rows, {l.input(0), l.output(0), l.output(1)}, [&] {
      const Buffer x = kernel::param_buffer(elem), values = kernel::param_buffer(elem),
                   indices = kernel::param_buffer(kernel::Scalar::I32);
      const kernel::Scalar type = index_type(rows * n);
      return [=](const Value& i) {
        const Value row = kernel::cast(i, type);
        std::vector<Value> element, key;
        for (i64 e = 0; e < n; ++e) {
          element.push_back(x.load(row * index(type, n) + index(type, e)));
          key.push_back(order_key(element.back(), a.descending));
        }
        // Of two elements the later one comes first only if its key is less.
        std::vector<U32> place(static_cast<size_t>(n), word(0));
        for (size_t e = 0; e < key.size(); ++e) {
          for (size_t later = e + 1; later < key.size(); ++later) {
            const U32 wins(kernel::cast(key[later] < key[e], kernel::Scalar::U32));
            place[e] = place[e] + wins;
            place[later] = place[later] + (word(1) - wins);
          }
        }
        for (i64 k = 0; k < a.keep; ++k) {
          Value value = element[0];
          Value from = kernel::constant_int(kernel::Scalar::I32, 0);
          for (size_t e = 1; e < key.size(); ++e) {
            const kernel::Bool here = place[e] == word(k);
            value = kernel::select(here, element[e], value);
            from = kernel::select(
                here, kernel::constant_int(kernel::Scalar::I32, static_cast<i64>(e)), from);
          }
          const Value to = row * index(type, a.keep) + index(type, k);
          values.store(to, value);
          indices.store(to, from);
        }
      };
    });
  }

  static i64 rows_of(const Lower& l) {
    const Shape& s = l.in(0).shape;
    return axes_of(s, 0, s.rank() - 1).elements();
  }

  static void by_counting(Lower& l, const Attrs& a) {
    const i64 n = l.in(0).shape.back(), rows = rows_of(l);
    const kernel::Scalar elem = graph::element_scalar(l.in(0).dtype);
    const kernel::Scalar type = index_type(rows * n);
    const auto at = [&](i64 x) { return index(type, x); };
    // Element `own` of row `row` finds its place.
    const auto place = [&](const Buffer& x, const Buffer& values, const Buffer& indices,
                           const Value& row, const Value& own) {
      const Value first = row * at(n);
      const Value element = x.load(first + own);
      const Value key = order_key(element, a.descending);
      const kernel::VarValue before(at(0));
      kernel::For(at(0), at(n), at(1), [&](const Value& j) {
        const Value other = order_key(x.load(first + j), a.descending);
        const Value wins = (other < key) | ((other == key) & (j < own));
        before.set(before.get() + kernel::cast(wins, type));
      });
      const auto store = [&] {
        const Value to = row * at(a.keep) + before.get();
        values.store(to, element);
        indices.store(to, kernel::cast(own, kernel::Scalar::I32));
      };
      if (a.keep == n) {
        store();
      } else {
        kernel::If(kernel::Bool(before.get() < at(a.keep)), store);
      }
    };
    const auto params = [&] {
      return std::array{kernel::param_buffer(elem), kernel::param_buffer(elem),
                        kernel::param_buffer(kernel::Scalar::I32)};
    };
    const std::vector<ArgRef> args = {l.input(0), l.output(0), l.output(1)};
    if (!l.target().is_cpu() || n < 2 * l.target().width) {
      launch_elements(l, "sort_short", rows * n, args, [&] {
        const auto p = params();
        return [=](const Value& i) {
          const Value flat = kernel::cast(i, type);
          place(p[0], p[1], p[2], flat / at(n), flat % at(n));
        };
      });
      return;
    }
    // On the CPU the row is the same for all lanes, so that the other element is one number.
    const i64 per_group = std::max<i64>(1, 16384 / (n * n / l.target().width + n));
    kernel::Kernel k = kernel::trace("sort_short", l.target(), l.target().width, [&] {
      const auto p = params();
      const Value begin = kernel::cast(kernel::group(), type) * at(per_group);
      kernel::For(begin, kernel::min(begin + at(per_group), at(rows)), at(1),
                  [&](const Value& row) {
                    for_lanes(at(0), at(n), n,
                              [&](const Value& own) { place(p[0], p[1], p[2], row, own); });
                  });
    });
    l.launch(std::move(k), ceil_div(rows, per_group), args);
  }

  // Few elements of a long row are looked for one after the other.
  static bool selects(const Lower& l, const Attrs& a) {
    const i64 most = l.target().is_cpu() ? 64 : 16;
    return a.keep > 0 && a.keep <= most && key_bits(l.in(0).dtype) <= 32 &&
           a.keep * l.in(0).shape.back() <= kMostLooks;
  }

  // A workgroup has a row. A round finds the first, by key and position, of those behind what the
  // round before found.
  static void by_selection(Lower& l, const Attrs& a) {
    const i64 n = l.in(0).shape.back(), rows = rows_of(l);
    const u32 width = l.target().width;
    const kernel::Scalar elem = graph::element_scalar(l.in(0).dtype);
    const kernel::Scalar type = index_type(rows * n);
    const i64 per_group =
        l.target().is_cpu() ? std::max<i64>(1, 16384 / (n * a.keep / width + n)) : 1;
    const auto least = [](const Value& x, const Value& y) { return kernel::min(x, y); };
    kernel::Kernel k = kernel::trace("sort_select", l.target(), width, [&] {
      const Buffer x = kernel::param_buffer(elem), values = kernel::param_buffer(elem),
                   indices = kernel::param_buffer(kernel::Scalar::I32);
      const auto select_row = [&](const Value& row) {
        const Value first = row * index(type, n);
        const kernel::Var<U32> last_key(word(0)), next(word(0));
        kernel::For(word(0), word(a.keep), word(1), [&](const U32& round) {
          const kernel::Var<U32> best(word(-1)), from(word(n));
          for_lanes(word(0), word(n), n, [&](const Value& lane_index) {
            const U32 j(lane_index);
            const U32 key(order_key(x.load(first + kernel::cast(j, type)), a.descending));
            const kernel::Bool behind = (*last_key < key) | ((key == *last_key) & (j >= *next));
            const kernel::Bool better = behind & ((key < *best) | (*from == word(n)));
            best = kernel::select(better, key, *best);
            from = kernel::select(better, j, *from);
          });
          const U32 found(kernel::group_reduce(*best, least));
          const U32 at(kernel::group_reduce(kernel::select(*best == found, *from, word(n)), least));
          kernel::If(kernel::lane() == 0u, [&] {
            const Value to = row * index(type, a.keep) + kernel::cast(round, type);
            values.store(to, x.load(first + kernel::cast(at, type)));
            indices.store(to, kernel::cast(at, kernel::Scalar::I32));
          });
          last_key = found;
          next = at + 1u;
        });
      };
      const Value begin = kernel::cast(kernel::group(), type) * index(type, per_group);
      if (per_group == 1) return select_row(begin);
      kernel::For(begin, kernel::min(begin + index(type, per_group), index(type, rows)),
                  index(type, 1), select_row);
    });
    l.launch(std::move(k), ceil_div(rows, per_group), {l.input(0), l.output(0), l.output(1)});
  }

  // Keys of the elements, or (F64) of the elements at the positions sorted so far.
  static void make_keys(Lower& l, const Attrs& a, const SortPairs& p, bool high, bool start) {
    const i64 n = l.in(0).shape.back(), rows = rows_of(l);
    const kernel::Scalar elem = graph::element_scalar(l.in(0).dtype);
    launch_elements(l, "sort_keys", rows * n,
                    {l.input(0), p.keys[p.current], p.positions[p.current]}, [&] {
                      const Buffer x = kernel::param_buffer(elem),
                                   keys = kernel::param_buffer(kernel::Scalar::U32),
                                   positions = kernel::param_buffer(kernel::Scalar::U32);
                      return [=](const Value& i) {
                        const Value count = index(i.scalar(), n);
                        Value from = i;
                        if (start) {
                          positions.store(i, kernel::cast(i % count, kernel::Scalar::U32));
                        } else {
                          from = i - i % count + kernel::cast(positions.load(i), i.scalar());
                        }
                        Value key = order_key(x.load(from), a.descending);
                        if (high) key = key >> 32;
                        keys.store(i, kernel::cast(key, kernel::Scalar::U32));
                      };
                    });
  }

  static void by_radix(Lower& l, const Attrs& a) {
    const i64 n = l.in(0).shape.back(), rows = rows_of(l);
    const kernel::Scalar elem = graph::element_scalar(l.in(0).dtype);
    SortPairs p = make_pairs(l, rows, n);
    const u32 bits = key_bits(l.in(0).dtype);
    make_keys(l, a, p, false, true);
    radix_sort(l, rows, n, std::min(bits, 32u), p);
    if (bits == 64) {
      make_keys(l, a, p, true, false);
      radix_sort(l, rows, n, 32, p);
    }
    launch_elements(l, "sort_values", rows * a.keep,
                    {l.input(0), p.sorted_positions(), l.output(0), l.output(1)}, [&] {
                      const Buffer x = kernel::param_buffer(elem),
                                   positions = kernel::param_buffer(kernel::Scalar::U32),
                                   values = kernel::param_buffer(elem),
                                   indices = kernel::param_buffer(kernel::Scalar::I32);
                      const kernel::Scalar type = index_type(rows * n);
                      return [=](const Value& i) {
                        const Value keep = index(i.scalar(), a.keep);
                        const Value first = kernel::cast(i / keep, type) * index(type, n);
                        const Value from = positions.load(first + kernel::cast(i % keep, type));
                        values.store(i, x.load(first + kernel::cast(from, type)));
                        indices.store(i, kernel::cast(from, kernel::Scalar::I32));
                      };
                    });
  }
};

TopKResult sorted(std::string_view op, const Matrix& x, i64 axis, bool descending, i64 keep) {
  const u32 a = resolve_axis(op, axis, x.rank());
  const bool last = a + 1 == x.rank();
  const Matrix rows = last ? x : transpose(x, a, -1);
  if (keep < 0) keep = rows.shape().back();
  const TensorRef in[] = {rows.tensor()};
  const std::vector<TensorRef> r = record_all<SortRows>(in, {keep, descending});
  const auto back = [&](const TensorRef& t) { return last ? Matrix(t) : transpose(t, a, -1); };
  return {back(r[0]), back(r[1])};
}

}  // namespace

OpList sort_ops() { return graph::op_list<SortRows>(); }

Matrix sort(const Matrix& x, i64 axis, bool descending) {
  return sorted("sort", x, axis, descending, -1).values;
}
Matrix argsort(const Matrix& x, i64 axis, bool descending) {
  return sorted("argsort", x, axis, descending, -1).indices;
}

TopKResult top_k(const Matrix& x, i64 k, i64 axis) {
  if (k < 0) invalid("top_k", "negative count, got {}, expected 0 or more", k);
  const i64 extent = x.shape()[resolve_axis("top_k", axis, x.rank())];
  return sorted("top_k", x, axis, true, std::min(k, extent));
}

Matrix top_k_mask(const Matrix& indices, i64 classes) {
  if (indices.valid() && indices.rank() < 2) {
    invalid("top_k_mask", "bad shape, got {}, expected [T, K]", indices.shape());
  }
  // A class that is named twice counts once.
  return clamp_max(sum(one_hot(indices, classes), -2), 1);
}

}  // namespace oa::matrix
