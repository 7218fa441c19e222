// scatter_add_rows: positions are sorted by their index, then every row adds its own list in order.
// Few positions are searched by every row instead; on GPUs, where a launch costs more than a
// search, many as well.
#include <algorithm>
#include <limits>

#include "oa/matrix/all_ops.h"
#include "oa/matrix/index.h"
#include "oa/matrix/index_rules.h"
#include "oa/matrix/kernel_tools.h"
#include "oa/matrix/radix_sort.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {
namespace {

using graph::ArgRef;
using graph::Lower;
using kernel::Buffer;
using kernel::U32;
using kernel::Value;

constexpr i64 kSearch = 8192;  // rows times positions up to which every row looks at all positions
constexpr i64 kSearchGpu = 1 << 24;
constexpr u32 kUnroll = 8;  // updates that are loaded together
constexpr i64 kPerGroup = 4096;

struct ScatterAddRows {
  static constexpr OpInfo kInfo{.name = "scatter_add_rows", .kind = OpKind::Kernel};
  struct Attrs {
    i64 rows;
  };
  static void infer(Infer& in, const Attrs& a) {
    need_indices(in, 0);
    const Shape &indices = in.shape(0), &updates = in.shape(1);
    if (in.dtype(1) == DType::Bool || in.dtype(1) == DType::U8) {
      in.reject("operand 1 has the wrong dtype, got {}, expected a float, i32 or u32",
                token(in.dtype(1)));
    }
    bool fits = updates.rank() >= indices.rank();
    for (u32 i = 0; fits && i < indices.rank(); ++i) fits = indices[i] == updates[i];
    if (!fits) {
      in.reject("updates do not fit, got {} for indices {}, expected the indices' shape first",
                updates, indices);
    }
    constexpr i64 kMost = std::numeric_limits<i32>::max();
    if (a.rows < 0 || a.rows > kMost) {
      in.reject("bad number of rows, got {}, expected 0 to {}", a.rows, kMost);
    }
    if (indices.elements() > kMost) {
      in.reject("too many indices, got shape {}, expected fewer than 2^31", indices);
    }
    const Shape out = joined(Shape{a.rows}, axes_of(updates, indices.rank(), updates.rank()));
    check_shape(in.op(), out, size_bytes(in.dtype(1)));
    in.out(in.dtype(1), out);
  }
  static i64 index_limit(const Infer&, const Attrs& a) { return a.rows; }

  static void lower(Lower& l, const Attrs& a) {
    const i64 count = l.in(0).shape.elements();
    const bool work = count > 0 && l.out().shape.elements() > 0;
    if (!l.target().is_cpu() && work && a.rows * count <= kSearchGpu) {
      l.explain(fmt::format("{} indices for {} rows are few: the workgroup of a row reads them all",
                            count, a.rows));
      search(l, a.rows, count);
      return;
    }
    const u32 bits = bit_width(static_cast<u64>(a.rows));
    l.explain(fmt::format("{} indices for {} rows: {}, then every row adds its updates in order",
                          count, a.rows,
                          a.rows * count > kSearch ? "sorted" : "few enough to search"));
    SortPairs p = make_pairs(l, 1, count);
    make_keys(l, a.rows, count, p);
    if (a.rows * count > kSearch) radix_sort(l, 1, count, bits, p);
    Sum{l, a.rows, count, a.rows * count > kSearch}.launch(p);
  }

  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&) {
    return gradients({{}, gather(grad(g), input(g, 0))});
  }
  static void samples(Samples& s) {
    for (DType t : {DType::F32, DType::F64, DType::I32, DType::U32}) {
      s.call({{{9}, DType::I32, 0, 5}, {{9, 3}, t}}, Attrs{6});
    }
    s.call({{{2, 4}, DType::U8, 0, 2}, {{2, 4}}}, Attrs{3});
    s.reject({{{3}, DType::I32}, {{4, 2}}}, Attrs{5},
             "scatter_add_rows: updates do not fit, got [4, 2] for indices [3], expected the "
             "indices' shape first");
  }

 private:
  // How many updates there are, a parameter: it follows from the size of a batch.
  static U32 extent(i64 count) { return U32(kernel::extent(kernel::Scalar::U32, count)); }

  // One launch: the workgroup of a row, or of some columns of it, goes through all indices and adds
  // the updates that are its own.
  static void search(Lower& l, i64 rows, i64 count) {
    const i64 columns = l.out().shape.elements() / std::max<i64>(1, rows);
    const u32 width = l.target().width;
    const i64 each = std::clamp<i64>(ceil_div(columns, width), 1, 4);  // columns of a lane
    const i64 blocks = ceil_div(columns, width * each);
    const kernel::Scalar elem = graph::element_scalar(l.out().dtype);
    const kernel::Scalar type = index_type(std::max(rows, count) * std::max<i64>(1, columns));
    kernel::Kernel k = kernel::trace("scatter_search", l.target(), width, [&] {
      const Buffer indices = kernel::param_buffer(graph::element_scalar(l.in(0).dtype)),
                   updates = kernel::param_buffer(elem), out = kernel::param_buffer(elem);
      const IndexCheck check = IndexCheck::param();
      const auto at = [&](i64 x) { return index(type, x); };
      const Value group = kernel::cast(kernel::group(), type);
      const Value row = group / at(blocks), first = group % at(blocks) * at(width * each);
      std::vector<Value> column;
      std::vector<kernel::VarValue> sums;
      for (i64 c = 0; c < each; ++c) {
        column.push_back(first + at(c * width) + kernel::cast(kernel::lane(), type));
        sums.emplace_back(kernel::literal(kernel::value_scalar(elem), 0));
      }
      const auto guarded = [&](i64 c, const std::function<void()>& body) {
        if (columns % (width * each) == 0) return body();
        kernel::If(kernel::Bool(column[static_cast<size_t>(c)] < at(columns)), body);
      };
      const kernel::Shared own(kernel::Scalar::U32, width);
      const U32 all = extent(count);
      kernel::For(word(0), all, word(width), [&](const U32& begin) {
        const U32 i = begin + kernel::lane();
        const kernel::Bool inside = i < all;
        const Value index = indices.load(kernel::select(inside, i, word(0)));
        const kernel::Bool bad = inside & kernel::Bool(out_of_range(index, rows));
        check.report(bad & kernel::Bool(group == at(0)), i, index);
        const kernel::Bool mine =
            inside & !bad & (kernel::cast<U32>(index) == kernel::cast<U32>(row));
        const GroupScan place = group_scan(kernel::select(mine, word(1), word(0)));
        kernel::If(mine, [&] { own[U32(place.inclusive) - word(1)] = i; });
        kernel::barrier();
        // Loads of a round do not wait for each other; the additions keep their order.
        const U32 total(place.total), rounds = total / word(kUnroll);
        const auto add = [&](const U32& from, u32 together) {
          for (i64 c = 0; c < each; ++c) {
            guarded(c, [&] {
              kernel::VarValue& sum = sums[static_cast<size_t>(c)];
              std::vector<Value> u;
              for (u32 n = 0; n < together; ++n) {
                const Value position = kernel::cast(own.load(from + word(n)), type);
                u.push_back(updates.load(position * at(columns) + column[static_cast<size_t>(c)]));
              }
              for (const Value& x : u) sum.set(sum.get() + x);
            });
          }
        };
        kernel::For(word(0), rounds, word(1),
                    [&](const U32& round) { add(round * word(kUnroll), kUnroll); });
        kernel::For(rounds * word(kUnroll), total, word(1), [&](const U32& n) { add(n, 1); });
        kernel::barrier();
      });
      for (i64 c = 0; c < each; ++c) {
        const auto i = static_cast<size_t>(c);
        guarded(c, [&] { out.store(row * at(columns) + column[i], sums[i].get()); });
      }
    });
    l.launch_checked(std::move(k), rows * blocks, {l.input(0), l.input(1), l.output()});
  }

  // An index out of range is reported and becomes `rows`, a row that nobody adds.
  static void make_keys(Lower& l, i64 rows, i64 count, const SortPairs& p) {
    launch_elements_checked(l, "scatter_keys", count, {l.input(0), p.keys[0], p.positions[0]}, [&] {
      const Buffer indices = kernel::param_buffer(graph::element_scalar(l.in(0).dtype)),
                   keys = kernel::param_buffer(kernel::Scalar::U32),
                   positions = kernel::param_buffer(kernel::Scalar::U32);
      const IndexCheck check = IndexCheck::param();
      return [=](const Value& i) {
        const Value at = indices.load(i);
        const Value bad = out_of_range(at, rows);
        check.report(bad, i, at);
        keys.store(i, kernel::select(bad, word(rows), kernel::cast(at, kernel::Scalar::U32)));
        positions.store(i, kernel::cast(i, kernel::Scalar::U32));
      };
    });
  }

  struct Sum {
    Lower& l;
    i64 rows;
    i64 count;
    bool sorted;
    i64 columns = l.out().shape.elements() / std::max<i64>(1, rows);
    kernel::Scalar elem = graph::element_scalar(l.out().dtype);
    kernel::Scalar type = index_type(std::max(rows, count) * std::max<i64>(1, columns));

    Value at(i64 x) const { return index(type, x); }
    Value zero() const { return kernel::literal(kernel::value_scalar(elem), 0); }

    void launch(const SortPairs& p) const {
      const u32 width = l.target().width;
      const std::vector<ArgRef> args = {sorted ? starts_of_lists(p) : p.sorted_keys(),
                                        p.sorted_positions(), l.input(1), l.output()};
      const bool cpu = l.target().is_cpu();
      if (columns < (cpu ? width / 2 : width)) {
        launch_elements(l, "scatter_sum", rows * columns, args, [&] {
          const Params b = params();
          return [=, this](const Value& i) {
            const Value flat = kernel::cast(i, type);
            const Value row = flat / at(columns), column = flat % at(columns);
            const auto [begin, end] = list_of(b, row);
            b.out.store(flat, total(b, row, column, begin, end));
          };
        });
        return;
      }
      // Lanes share a row, so that its list is the same for all of them.
      const i64 per_group = cpu ? std::max<i64>(1, kPerGroup / columns) : 1;
      kernel::Kernel k = kernel::trace("scatter_sum", l.target(), width, [&] {
        const Params b = params();
        const Value first = kernel::cast(kernel::group(), type) * at(per_group);
        const auto row_sum = [&](const Value& row) {
          const auto [begin, end] = list_of(b, row);
          for_lanes(at(0), at(columns), columns, [&](const Value& column) {
            b.out.store(row * at(columns) + column, total(b, row, column, begin, end));
          });
        };
        if (per_group == 1) {
          row_sum(first);
        } else {
          kernel::For(first, kernel::min(first + at(per_group), at(rows)), at(1), row_sum);
        }
      });
      l.launch(std::move(k), ceil_div(rows, per_group), args);
    }

    // Where each row's positions begin among the sorted ones, and their number for row `rows`.
    ArgRef starts_of_lists(const SortPairs& p) const {
      const ArgRef starts = l.temp(static_cast<u64>(rows + 1) * 4);
      launch_elements(l, "scatter_starts", rows + 1, {p.sorted_keys(), starts}, [&] {
        const Buffer keys = kernel::param_buffer(kernel::Scalar::U32),
                     out = kernel::param_buffer(kernel::Scalar::U32);
        return [=, this](const Value& row) {
          const U32 key(kernel::cast(row, kernel::Scalar::U32));
          out.store(row, lower_bound(keys, word(0), extent(count), key));
        };
      });
      return starts;
    }

    struct Params {
      Buffer lists;  // starts of lists, or (not sorted) the row of each position
      Buffer positions, updates, out;
    };
    Params params() const {
      const Buffer lists = kernel::param_buffer(kernel::Scalar::U32),
                   positions = kernel::param_buffer(kernel::Scalar::U32),
                   updates = kernel::param_buffer(elem), out = kernel::param_buffer(elem);
      return {lists, positions, updates, out};
    }

    // The row's part of the sorted positions; all positions where they are not sorted.
    std::pair<U32, U32> list_of(const Params& b, const Value& row) const {
      if (!sorted) return {word(0), extent(count)};
      return {U32(b.lists.load(row)), U32(b.lists.load(row + at(1)))};
    }

    Value total(const Params& b, const Value& row, const Value& column, const U32& begin,
                const U32& end) const {
      const kernel::VarValue sum(zero());
      const auto update = [&](const U32& i) {
        const Value position = kernel::cast(b.positions.load(i), type);
        return b.updates.load(position * at(columns) + column);
      };
      if (!sorted) {
        kernel::For(begin, end, word(1), [&](const U32& i) {
          const kernel::Bool own(U32(b.lists[i]) == kernel::cast<U32>(row));
          kernel::If(own, [&] { sum.set(sum.get() + update(i)); });
        });
        return sum.get();
      }
      // Loads of a round do not wait for each other; the additions keep their order.
      const U32 rounds = (end - begin) / word(kUnroll);
      kernel::For(word(0), rounds, word(1), [&](const U32& it) {
        std::vector<Value> u;
        for (u32 k = 0; k < kUnroll; ++k) {
          u.push_back(update(begin + it * word(kUnroll) + word(k)));
        }
        for (const Value& x : u) sum.set(sum.get() + x);
      });
      kernel::For(begin + rounds * word(kUnroll), end, word(1),
                  [&](const U32& i) { sum.set(sum.get() + update(i)); });
      return sum.get();
    }
  };
};

}  // namespace

OpList scatter_ops() { return graph::op_list<ScatterAddRows>(); }

Matrix scatter_add_rows(i64 rows, const Matrix& indices, const Matrix& updates) {
  return record<ScatterAddRows>({indices, updates}, {rows});
}

}  // namespace oa::matrix
