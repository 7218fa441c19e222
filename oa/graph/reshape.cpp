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

std::vector<TensorRef> Reshape::gradient(const Gradient& g, const Attrs&) {
  return g.grads[0]->recorder().graph().record(
      op_def<Reshape>(), make_attrs<Reshape>({g.inputs[0]->shape()}), g.grads);
}

std::vector<TensorRef> Copy::gradient(const Gradient& g, const Attrs&) { return {g.grads[0]}; }

void Copy::infer(Infer& in, const Attrs&) { in.out(in.dtype(0), in.shape(0)); }

kernel::Value Copy::emit(Emit& e, const Attrs&) { return e.input(0); }

void Copy::samples(Samples& s) {
  for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{2, 1, 3, 1, 2, 1, 2, 3}}) {
    s.call({{shape}}, Attrs{});
  }
  for (DType t : kAll) s.call({{{41}, t, -2, 2, true}}, Attrs{});
}

void Reshape::samples(Samples& s) {
  for (DType t : kAll) s.call({{{4, 6}, t}}, Attrs{{3, 8}});
  for (const auto& [from, to] : {std::pair<Shape, Shape>{{}, {1, 1}},
                                 {{1}, {}},
                                 {{2, 3, 1}, {6}},
                                 {{5, 7}, {7, 5}},
                                 {{2, 3, 5, 7}, {6, 1, 35}},
                                 {{0, 3}, {5, 0, 2}},
                                 {{2, 2, 2, 2, 2, 2, 2}, {4, 1, 8, 4}}}) {
    s.call({{from}}, Attrs{to});
  }
  s.reject({{{2, 3}}}, Attrs{{4}},
           "reshape: element counts differ, got [2, 3] to [4], expected as many elements");
  s.reject({{{2, 3}}}, Attrs{{-2, -3}},
           "reshape: negative extent, got shape [-2, -3], expected extents of 0 or more");
}

}  // namespace oa::graph
