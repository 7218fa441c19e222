#include "oa/matrix/moe.h"

#include <limits>

#include "oa/matrix/sort.h"
#include "tests/matrix/devices.h"

namespace oa::matrix {
namespace {

using test::error_of;

class Moe : public test::OnDevice {};
OA_ON_DEVICES(Moe);

constexpr u32 kNone = 0xffffffffu;

struct Plan {
  std::vector<u32> counts, offsets, token, expert, slot, inverse;
};

Plan reference(const std::vector<i32>& indices, i64 k, i64 experts) {
  Plan p;
  p.inverse.assign(indices.size(), kNone);
  for (i64 e = 0; e < experts; ++e) {
    p.offsets.push_back(static_cast<u32>(p.slot.size()));
    for (size_t s = 0; s < indices.size(); ++s) {
      if (indices[s] != e) continue;
      p.inverse[s] = static_cast<u32>(p.slot.size());
      p.slot.push_back(static_cast<u32>(s));
      p.token.push_back(static_cast<u32>(s) / static_cast<u32>(k));
      p.expert.push_back(static_cast<u32>(e));
    }
    p.counts.push_back(static_cast<u32>(p.slot.size()) - p.offsets.back());
  }
  p.offsets.push_back(static_cast<u32>(p.slot.size()));
  for (auto* list : {&p.token, &p.expert, &p.slot}) list->resize(indices.size(), kNone);
  return p;
}

void expect_equal(const MoeExpertPlan& got, const Plan& want) {
  EXPECT_EQ(got.counts.read<u32>(), want.counts);
  EXPECT_EQ(got.offsets.read<u32>(), want.offsets);
  EXPECT_EQ(got.packed_token.read<u32>(), want.token);
  EXPECT_EQ(got.packed_expert.read<u32>(), want.expert);
  EXPECT_EQ(got.packed_slot.read<u32>(), want.slot);
  EXPECT_EQ(got.inverse.read<u32>(), want.inverse);
}

TEST_P(Moe, PlanIsAStableCountingSort) {
  struct Case {
    i64 tokens, k, experts;
  };
  for (const Case& c :
       {Case{1, 1, 1}, Case{5, 2, 3}, Case{64, 2, 8}, Case{37, 3, 300}, Case{9001, 2, 7}}) {
    const auto at =
        test::random_i32(static_cast<u32>(c.tokens), static_cast<size_t>(c.tokens * c.k), 0,
                         static_cast<i32>(c.experts) - 1);
    expect_equal(moe_expert_plan(from<i32>({c.tokens, c.k}, at), c.experts),
                 reference(at, c.k, c.experts));
  }
}

TEST_P(Moe, InvalidRoutesAreReportedAndDropped) {
  const std::vector<i32> at = {1, 0, 2, 5, 0, 1};
  const MoeExpertPlan p = moe_expert_plan(from<i32>({3, 2}, at), 3);
  EXPECT_EQ(error_of([&] { engine().wait(); }),
            "moe_expert_plan: index out of range at row 1, got 5, expected 0 to 2");
  expect_equal(p, reference(at, 2, 3));
}

TEST_P(Moe, NoTokens) {
  for (const Shape& s : {Shape{0, 2}, Shape{3, 0}}) {
    const MoeExpertPlan p = moe_expert_plan(from<i32>(s, {}), 4);
    EXPECT_EQ(p.counts.read<u32>(), (std::vector<u32>{0, 0, 0, 0}));
    EXPECT_EQ(p.offsets.read<u32>(), (std::vector<u32>{0, 0, 0, 0, 0}));
    EXPECT_EQ(p.inverse.shape(), (Shape{0}));
  }
}

TEST_P(Moe, BiasUpdate) {
  // Two of three experts for each of 3 tokens: the fair share is 2.
  const Matrix mask = top_k_mask(from<i32>({3, 2}, {0, 1, 0, 2, 0, 1}), 3);
  for (const Shape& s : {Shape{3}, Shape{1, 3}}) {
    const Matrix bias = from<f32>(s, {1, 2, 3});
    moe_routing_bias_update(mask, bias, 2, 0.25);
    EXPECT_EQ(bias.read_f32(), (std::vector<f32>{0.75f, 2, 3.25f}));
    moe_routing_bias_update(mask, bias, 2, 0.5);
    EXPECT_EQ(bias.read_f32(), (std::vector<f32>{0.25f, 2, 3.75f}));
  }
}

TEST_P(Moe, Rejects) {
  const Matrix at = from<i32>({2}, {0, 1}), mask = from<f32>({1, 2}, {0, 1});
  const Matrix bias = from<f32>({2}, {0, 0});
  EXPECT_EQ(error_of([&] { moe_expert_plan(at, 2); }),
            "moe_expert_plan: bad indices, got i32 [2], expected i32 [T, K]");
  EXPECT_EQ(error_of([&] { moe_expert_plan(at.reshape({1, 2}), 0); }),
            "moe_expert_plan: bad number of experts, got 0, expected 1 or more");
  EXPECT_EQ(error_of([&] { moe_routing_bias_update(mask, at, 1, 0.1); }),
            "moe_routing_bias_update: bad bias, got i32 [2], expected f32 [2] or [1, 2]");
  EXPECT_EQ(error_of([&] { moe_routing_bias_update(bias, bias, 1, 0.1); }),
            "moe_routing_bias_update: bad mask, got f32 [2], expected f32 [T, E]");
  EXPECT_EQ(error_of([&] { moe_routing_bias_update(mask, bias, 3, 0.1); }),
            "moe_routing_bias_update: bad k, got 3, expected 1 to 2");
  EXPECT_EQ(error_of([&] { moe_routing_bias_update(mask, bias, 1, 0); }),
            "moe_routing_bias_update: bad gamma, got 0, expected a finite number above 0");
}

}  // namespace
}  // namespace oa::matrix
