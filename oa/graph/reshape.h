// The ops that the graph itself needs.
#pragma once

#include "oa/graph/gradient.h"

namespace oa::graph {

// The same elements in row-major order under another shape of as many elements.
struct Reshape {
  static constexpr OpInfo kInfo{.name = "reshape", .kind = OpKind::Movement, .cost = 0};
  struct Attrs {
    Shape shape;
  };
  static void infer(Infer& in, const Attrs& a);
  static AffineMap view(const View& v, const Attrs& a);
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a);
  static void samples(Samples& s);
};

// The same elements in other memory.
struct Copy {
  static constexpr OpInfo kInfo{.name = "copy", .kind = OpKind::Elementwise, .cost = 0};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&);
  static kernel::Value emit(Emit& e, const Attrs&);
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs&);
  static void samples(Samples& s);
};

}  // namespace oa::graph
