#include "oa/graph/reshape.h"

#include "oa/graph/emit.h"

namespace oa::graph {

void Reshape::infer(Infer& in, const Attrs& a) {
  check_shape(in.op(), a.shape, 1);
  if (a.shape.elements() != in.shape(0).elements()) {
    in.reject("element counts differ, got {} to {}, expected as many elements", in.shape(0),
              a.shape);
  }
  in.out(in.dtype(0), a.shape);
}

AffineMap Reshape::view(const View& v, const Attrs& a) {
  auto map = reshape_map(v.output(), a.shape, v.input_shape(), v.domain());
  if (!map) v.not_affine();
  return *std::move(map);
}

}  // namespace oa::graph
