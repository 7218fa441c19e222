#include "oa/graph/affine.h"

#include <algorithm>
#include <numeric>

namespace oa::graph {

AffineExpr& AffineExpr::operator+=(const AffineExpr& other) {
  offset += other.offset;
  if (coef.size() < other.coef.size()) coef.resize(other.coef.size());
  for (size_t i = 0; i < other.coef.size(); ++i) coef[i] += other.coef[i];
  return *this;
}

AffineExpr AffineExpr::scaled(i64 factor) const {
  AffineExpr result = *this;
  result.offset *= factor;
  for (i64& c : result.coef) c *= factor;
  return result;
}

i64 AffineExpr::min(const Dims& domain) const {
  i64 value = offset;
  for (size_t i = 0; i < coef.size(); ++i) {
    value += std::min<i64>(0, coef[i]) * (domain[static_cast<u32>(i)] - 1);
  }
  return value;
}

i64 AffineExpr::max(const Dims& domain) const {
  i64 value = offset;
  for (size_t i = 0; i < coef.size(); ++i) {
    value += std::max<i64>(0, coef[i]) * (domain[static_cast<u32>(i)] - 1);
  }
  return value;
}

AffineMap AffineMap::identity(const Shape& domain) {
  AffineMap map;
  for (u32 i = 0; i < domain.rank(); ++i) {
    AffineExpr e = constant(0, domain.rank());
    e.coef[i] = domain[i] == 1 ? 0 : 1;
    map.axes.push_back(std::move(e));
  }
  return map;
}

AffineExpr AffineMap::flatten(const Shape& shape, u32 domain_rank) const {
  AffineExpr flat = constant(0, domain_rank);
  const Dims strides = shape.strides();
  for (u32 i = 0; i < shape.rank(); ++i) flat += axes[i].scaled(strides[i]);
  return flat;
}

std::optional<AffineMap> unflatten(const AffineExpr& flat, const Shape& shape,
                                   const Shape& domain) {
  const u32 rank = domain.rank();
  AffineMap map;
  map.axes.assign(shape.rank(), AffineMap::constant(0, rank));
  if (shape.elements() == 0) return map;  // there is no element to be at
  AffineExpr rest = flat;
  // From the innermost axis outwards: the axis takes the terms that move within it and leaves the
  // ones that are multiples of its extent.
  for (u32 axis = shape.rank(); axis-- > 0;) {
    const i64 extent = shape[axis];
    AffineExpr& here = map.axes[axis];
    if (axis == 0) {
      here = rest;
      break;
    }
    if (extent == 1) continue;
    AffineExpr outer = AffineMap::constant(0, rank);
    for (u32 d = 0; d < rank; ++d) {
      const i64 c = rest.coef[d];
      if (c == 0 || domain[d] == 1) continue;
      if (c % extent == 0) {
        outer.coef[d] = c / extent;
        continue;
      }
      const i64 step = std::abs(c);
      if (step * (domain[d] - 1) >= extent) {
        // The coordinate leaves the axis: cut it at the axis' end where that is a whole step.
        if (extent % step == 0 && domain[d] % (extent / step) == 0) {
          throw SplitDomain{d, extent / step};
        }
        const i64 common = std::gcd(domain[d], extent / std::gcd(extent, step));
        if (common > 1 && common < domain[d] && (step * common) % extent == 0) {
          throw SplitDomain{d, common};
        }
        return std::nullopt;
      }
      here.coef[d] = c;
    }
    here.offset = ((rest.offset % extent) + extent) % extent;
    outer.offset = (rest.offset - here.offset) / extent;
    if (here.min(domain) < 0 || here.max(domain) >= extent) return std::nullopt;
    rest = std::move(outer);
  }
  return map;
}

bool refine(Shape& domain, std::vector<bool>& marked, const Shape& shape) {
  Shape fine = domain;
  std::vector<bool> marks = marked;
  for (;;) {
    AffineExpr flat = AffineMap::constant(0, fine.rank());
    i64 stride = 1;
    for (u32 i = fine.rank(); i-- > 0;) {
      if (!marks[i]) continue;
      if (fine[i] != 1) flat.coef[i] = stride;
      stride *= fine[i];
    }
    try {
      if (!unflatten(flat, shape, fine)) return false;
      domain = fine;
      marked = marks;
      return true;
    } catch (const SplitDomain& split) {
      fine[split.axis] /= split.inner;
      fine.insert(split.axis + 1, split.inner);
      marks.insert(marks.begin() + split.axis, marks[split.axis]);
    }
  }
}

std::optional<AffineMap> reshape_map(const AffineMap& output, const Shape& output_shape,
                                     const Shape& input_shape, const Shape& domain) {
  return unflatten(output.flatten(output_shape, domain.rank()), input_shape, domain);
}

}  // namespace oa::graph
