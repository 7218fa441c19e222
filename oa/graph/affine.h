// Affine index maps: how the coordinates of a value depend on the coordinates of a loop nest.
//
// A group of fused ops runs over one loop nest, the domain. Every value in the group is read at
// coordinates that are affine in the domain's: movement ops only change the map, and cost nothing.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "oa/core/shape.h"

namespace oa::graph {

// offset + sum of coef[i] * domain coordinate i
struct AffineExpr {
  i64 offset = 0;
  std::vector<i64> coef;

  bool operator==(const AffineExpr&) const = default;
  AffineExpr& operator+=(const AffineExpr& other);
  AffineExpr scaled(i64 factor) const;
  i64 min(const Dims& domain) const;  // over the whole domain
  i64 max(const Dims& domain) const;
};

// One expression per axis of a value.
struct AffineMap {
  std::vector<AffineExpr> axes;
  bool operator==(const AffineMap&) const = default;

  // Axis i is domain coordinate i. An axis of one step has no coefficient anywhere, so that equal
  // positions have equal maps.
  static AffineMap identity(const Shape& domain);
  static AffineExpr constant(i64 value, u32 domain_rank) {
    return {value, std::vector<i64>(domain_rank)};
  }

  // Row-major position within `shape`.
  AffineExpr flatten(const Shape& shape, u32 domain_rank) const;
};

// Thrown while maps are composed: the loop nest must split axis `axis` so that its inner part has
// `inner` steps. Caught by the code that owns the domain, which starts over with a finer one.
struct SplitDomain {
  u32 axis;
  i64 inner;
};

// The map of a reshape's input, given the map of its output. Throws SplitDomain where a coordinate
// of the domain must be cut first; gives nothing where the input is not affine in any cut of it.
std::optional<AffineMap> reshape_map(const AffineMap& output, const Shape& output_shape,
                                     const Shape& input_shape, const Shape& domain);

// Positions of value `flat` as coordinates of `shape` (the same task, from a flat expression).
std::optional<AffineMap> unflatten(const AffineExpr& flat, const Shape& shape, const Shape& domain);

// Cuts the axes of `domain` (and their marks) until positions over the marked axes, in row-major
// order, are affine coordinates of `shape`, which has as many elements. False if no cut does that.
bool refine(Shape& domain, std::vector<bool>& marked, const Shape& shape);

}  // namespace oa::graph
