#include "oa/matrix/moe.h"

#include <array>
#include <cmath>
#include <limits>

#include "oa/matrix/all_ops.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/index_rules.h"
#include "oa/matrix/kernel_tools.h"
#include "oa/matrix/radix_sort.h"
#include "oa/matrix/reduce.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {
namespace {

using graph::Lower;
using kernel::Buffer;
using kernel::U32;
using kernel::Value;

struct ExpertPlan {
  static constexpr OpInfo kInfo{.name = "moe_expert_plan", .kind = OpKind::Kernel};
  struct Attrs {
    i64 experts;
  };
  static constexpr i64 kMost = std::numeric_limits<i32>::max();

  static void infer(Infer& in, const Attrs& a) {
    if (in.dtype(0) != DType::I32 || in.shape(0).rank() != 2) {
      in.reject("bad indices, got {} {}, expected i32 [T, K]", token(in.dtype(0)), in.shape(0));
    }
    if (a.experts < 1 || a.experts > kMost - 1) {
      in.reject("bad number of experts, got {}, expected 1 or more", a.experts);
    }
    const i64 slots = in.shape(0).elements();
    if (slots > kMost) {
      in.reject("too many routes, got shape {}, expected fewer than 2^31", in.shape(0));
    }
    in.out(DType::U32, {a.experts});
    in.out(DType::U32, {a.experts + 1});
    for (int i = 0; i < 4; ++i) in.out(DType::U32, {slots});
  }
  static i64 index_limit(const Infer&, const Attrs& a) { return a.experts; }

  static void lower(Lower& l, const Attrs& a) {
    const i64 slots = l.in(0).shape.elements(), k = l.in(0).shape[1];
    l.explain(fmt::format("{} slots sorted by expert, then counted by search", slots));
    SortPairs p = make_pairs(l, 1, slots);
    launch_elements_checked(l, "moe_keys", slots, {l.input(0), p.keys[0], p.positions[0]}, [&] {
      const Buffer indices = kernel::param_buffer(kernel::Scalar::I32),
                   keys = kernel::param_buffer(kernel::Scalar::U32),
                   positions = kernel::param_buffer(kernel::Scalar::U32);
      const IndexCheck check = IndexCheck::param();
      return [=](const Value& i) {
        const Value expert = indices.load(i);
        const Value bad = out_of_range(expert, a.experts);
        check.report(bad, i / index(i.scalar(), k), expert);
        keys.store(i,
                   kernel::select(bad, word(a.experts), kernel::cast(expert, kernel::Scalar::U32)));
        positions.store(i, i);
      };
    });
    radix_sort(l, 1, slots, bit_width(static_cast<u64>(a.experts)), p);
    launch_elements(
        l, "moe_rows", slots,
        {p.sorted_keys(), p.sorted_positions(), l.output(2), l.output(3), l.output(4), l.output(5)},
        [&] {
          const auto words = params<6>();
          return [=](const Value& row) {
            const U32 expert(words[0][row]), slot(words[1][row]);
            const kernel::Bool used = expert < word(a.experts);
            const auto store = [&](const Buffer& b, const Value& at, const U32& x) {
              b.store(at, kernel::select(used, x, word(-1)));
            };
            store(words[2], row, slot / word(k));
            store(words[3], row, expert);
            store(words[4], row, slot);
            store(words[5], slot, U32(row));
          };
        });
    launch_elements(l, "moe_counts", a.experts + 1, {p.sorted_keys(), l.output(0), l.output(1)},
                    [&] {
                      const auto words = params<3>();
                      return [=](const Value& i) {
                        const U32 expert(i), all = word(slots);
                        const U32 begin = lower_bound(words[0], word(0), all, expert);
                        words[2].store(expert, begin);
                        kernel::If(expert < word(a.experts), [&] {
                          const U32 end = lower_bound(words[0], begin, all, expert + word(1));
                          words[1].store(expert, end - begin);
                        });
                      };
                    });
  }

  static void samples(Samples& s) {
    s.call({{{13, 2}, DType::I32, 0, 4}}, Attrs{5});
    s.call({{{1, 1}, DType::I32, 0, 0}}, Attrs{1});
    s.reject({{{3}, DType::I32}}, Attrs{5},
             "moe_expert_plan: bad indices, got i32 [3], expected i32 [T, K]");
    s.reject({{{3, 1}, DType::I32}}, Attrs{0},
             "moe_expert_plan: bad number of experts, got 0, expected 1 or more");
  }

 private:
  template <size_t kCount>
  static std::vector<Buffer> params() {
    std::vector<Buffer> list;
    for (size_t i = 0; i < kCount; ++i) list.push_back(kernel::param_buffer(kernel::Scalar::U32));
    return list;
  }
};

}  // namespace

OpList moe_ops() { return graph::op_list<ExpertPlan>(); }

MoeExpertPlan moe_expert_plan(const Matrix& indices, i64 experts) {
  const TensorRef in[] = {indices.tensor()};
  const std::vector<TensorRef> r = record_all<ExpertPlan>(in, {experts});
  return {r[0], r[1], r[2], r[3], r[4], r[5]};
}

void moe_routing_bias_update(const Matrix& mask, const Matrix& bias, i64 k, f64 gamma) {
  constexpr std::string_view op = "moe_routing_bias_update";
  if (!mask.valid() || !bias.valid()) invalid(op, "an operand is empty, expected values");
  if (mask.dtype() != DType::F32 || mask.rank() != 2) {
    invalid(op, "bad mask, got {} {}, expected f32 [T, E]", token(mask.dtype()), mask.shape());
  }
  const i64 tokens = mask.shape()[0], experts = mask.shape()[1];
  if (bias.dtype() != DType::F32 ||
      (bias.shape() != Shape{experts} && bias.shape() != Shape{1, experts})) {
    invalid(op, "bad bias, got {} {}, expected f32 {} or {}", token(bias.dtype()), bias.shape(),
            Shape{experts}, Shape{1, experts});
  }
  if (k < 1 || k > experts) invalid(op, "bad k, got {}, expected 1 to {}", k, experts);
  if (!std::isfinite(gamma) || gamma <= 0) {
    invalid(op, "bad gamma, got {}, expected a finite number above 0", gamma);
  }
  // Counted in integers, so that exactly the fair share compares as equal: count E against T K.
  const Matrix chosen = sum(not_equal(mask, full_like(mask, 0)), 0);
  const Matrix excess =
      cast(chosen, DType::I32) * full_like(cast(chosen, DType::I32), static_cast<f64>(experts)) -
      full_like(cast(chosen, DType::I32), static_cast<f64>(tokens * k));
  const Matrix step = cast(sign(excess), DType::F32) * gamma;
  bias.assign(bias - step.reshape(bias.shape()));
}

}  // namespace oa::matrix
