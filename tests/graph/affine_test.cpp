// Index maps against brute force, and the short lists that hold extents.
#include "oa/graph/affine.h"

#include <gtest/gtest.h>

#include <random>

namespace oa::graph {
namespace {

i64 at(const AffineExpr& e, const std::vector<i64>& coords) {
  i64 x = e.offset;
  for (size_t i = 0; i < e.coef.size(); ++i) x += e.coef[i] * coords[i];
  return x;
}

template <class F>
void for_each_position(const Shape& shape, F&& f) {
  if (shape.elements() == 0) return;
  std::vector<i64> c(shape.rank(), 0);
  for (;;) {
    f(static_cast<const std::vector<i64>&>(c));
    u32 a = shape.rank();
    while (a > 0 && ++c[a - 1] == shape[a - 1]) c[--a] = 0;
    if (a == 0) return;
  }
}

// A random shape of `elements` elements.
Shape random_shape(std::mt19937& rng, i64 elements) {
  Shape s;
  while (elements > 1) {
    i64 d = 2 + static_cast<i64>(rng() % static_cast<u64>(elements - 1));
    while (elements % d != 0) ++d;
    s.push_back(d);
    elements /= d;
  }
  const u32 ones = rng() % 3;
  for (u32 i = 0; i < ones; ++i) s.insert(static_cast<u32>(rng() % (s.rank() + 1)), 1);
  return s;
}

TEST(AffineMaps, ReshapesOfRefinedDomainsFindEveryElement) {
  std::mt19937 rng(1);
  u32 affine = 0, split = 0;
  for (int round = 0; round < 3000; ++round) {
    constexpr i64 sizes[] = {1, 2, 6, 8, 12, 16, 24, 30, 36, 60, 64, 7, 35};
    const i64 n = sizes[rng() % std::size(sizes)];
    const Shape output = random_shape(rng, n), input = random_shape(rng, n);
    Shape domain = random_shape(rng, n);
    for (;;) {
      const AffineMap identity = AffineMap::identity(domain);
      const auto out = unflatten(identity.flatten(domain, domain.rank()), domain, domain);
      ASSERT_TRUE(out.has_value());
      try {
        const auto as_output = unflatten(identity.flatten(domain, domain.rank()), output, domain);
        if (!as_output) break;
        const auto map = reshape_map(*as_output, output, input, domain);
        if (!map) break;
        ++affine;
        ASSERT_EQ(map->axes.size(), input.rank());
        i64 position = 0;
        for_each_position(domain, [&](const std::vector<i64>& c) {
          i64 flat = 0;
          for (u32 a = 0; a < input.rank(); ++a) {
            const i64 x = at(map->axes[a], c);
            ASSERT_GE(x, 0);
            ASSERT_LT(x, input[a]);
            flat = flat * input[a] + x;
          }
          ASSERT_EQ(flat, position++);
        });
        break;
      } catch (const SplitDomain& s) {
        ++split;
        ASSERT_LT(s.axis, domain.rank());
        ASSERT_GT(s.inner, 1);
        ASSERT_LT(s.inner, domain[s.axis]);
        ASSERT_EQ(domain[s.axis] % s.inner, 0);
        domain[s.axis] /= s.inner;
        domain.insert(s.axis + 1, s.inner);
      }
    }
  }
  EXPECT_GT(affine, 1000u);
  EXPECT_GT(split, 100u);
}

// Positions that are no plain walk: transposed, reversed, strided, shifted.
TEST(AffineMaps, UnflattenNeverPutsAnElementElsewhere) {
  std::mt19937 rng(2);
  u32 found = 0;
  for (int round = 0; round < 5000; ++round) {
    Shape domain, shape;
    for (u32 i = rng() % 4; i-- > 0;) domain.push_back(1 + static_cast<i64>(rng() % 5));
    for (u32 i = 1 + rng() % 3; i-- > 0;) shape.push_back(1 + static_cast<i64>(rng() % 6));
    AffineExpr flat = AffineMap::constant(static_cast<i64>(rng() % 7), domain.rank());
    for (i64& c : flat.coef) c = static_cast<i64>(rng() % 15) - 5;
    if (flat.min(domain) < 0 || flat.max(domain) >= shape.elements()) continue;
    try {
      const auto map = unflatten(flat, shape, domain);
      if (!map) continue;
      ++found;
      for_each_position(domain, [&](const std::vector<i64>& c) {
        i64 position = 0;
        for (u32 a = 0; a < shape.rank(); ++a) {
          const i64 x = at(map->axes[a], c);
          ASSERT_GE(x, 0);
          ASSERT_LT(x, shape[a]);
          position = position * shape[a] + x;
        }
        ASSERT_EQ(position, at(flat, c));
      });
    } catch (const SplitDomain& s) {
      ASSERT_GT(s.inner, 1);
      ASSERT_LT(s.inner, domain[s.axis]);
      ASSERT_EQ(domain[s.axis] % s.inner, 0);
    }
  }
  EXPECT_GT(found, 500u);
}

TEST(AffineMaps, BoundsAreThoseOfEveryPosition) {
  std::mt19937 rng(3);
  for (int round = 0; round < 500; ++round) {
    Shape domain;
    for (u32 i = rng() % 4; i-- > 0;) domain.push_back(1 + static_cast<i64>(rng() % 4));
    AffineExpr e = AffineMap::constant(static_cast<i64>(rng() % 9) - 4, domain.rank());
    for (i64& c : e.coef) c = static_cast<i64>(rng() % 9) - 4;
    i64 low = at(e, std::vector<i64>(domain.rank(), 0)), high = low;
    for_each_position(domain, [&](const std::vector<i64>& c) {
      low = std::min(low, at(e, c));
      high = std::max(high, at(e, c));
    });
    EXPECT_EQ(e.min(domain), low);
    EXPECT_EQ(e.max(domain), high);
  }
}

// Lists of more entries than fit inline behave like any other.
TEST(Extents, ListsOfAnyLength) {
  std::mt19937 rng(4);
  for (int round = 0; round < 300; ++round) {
    Dims dims;
    std::vector<i64> model;
    for (int step = 0; step < 40; ++step) {
      const i64 x = static_cast<i64>(rng() % 100);
      const u64 what = rng() % 4;
      if (what == 0 && !model.empty()) {
        const u32 i = static_cast<u32>(rng() % model.size());
        dims.erase(i);
        model.erase(model.begin() + i);
      } else if (what == 1) {
        const u32 i = static_cast<u32>(rng() % (model.size() + 1));
        dims.insert(i, x);
        model.insert(model.begin() + i, x);
      } else {
        dims.push_back(x);
        model.push_back(x);
      }
      ASSERT_EQ(std::vector<i64>(dims.begin(), dims.end()), model);
      ASSERT_EQ(dims, Dims(std::span<const i64>(model)));
      const Dims copy = dims;
      ASSERT_EQ(copy, dims);
    }
  }
  Shape wide(9, 2), narrow(9, 2);
  for (int i = 0; i < 5; ++i) wide.erase(0);
  EXPECT_EQ(wide, Shape(4, 2));
  EXPECT_NE(wide, narrow);
  wide = narrow;
  EXPECT_EQ(wide, narrow);
}

TEST(Extents, StridesAndElementCounts) {
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape().strides(), Dims());
  EXPECT_EQ((Shape{2, 3, 4}).strides(), (Dims{12, 4, 1}));
  EXPECT_EQ((Shape{2, 0, 4}).elements(), 0);
  EXPECT_EQ((Shape{1, 2, 1, 2, 1, 2, 3}).strides(), (Dims{24, 12, 12, 6, 6, 3, 1}));
}

}  // namespace
}  // namespace oa::graph
