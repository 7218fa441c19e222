// For op families: recording an op struct on values.
#pragma once

#include "oa/engine/engine_core.h"
#include "oa/graph/emit.h"
#include "oa/graph/gradient.h"
#include "oa/graph/lower.h"
#include "oa/matrix/matrix.h"

namespace oa::matrix {

using graph::Emit;
using graph::Gradient;
using graph::Infer;
using graph::NoAttrs;
using graph::OpInfo;
using graph::OpKind;
using graph::OpStruct;
using graph::Scalar;
using graph::TensorRef;

template <OpStruct T>
std::vector<TensorRef> record_all(std::span<const TensorRef> inputs, typename T::Attrs attrs) {
  const graph::OpDef& op = graph::op_def<T>();
  if (!inputs[0]) invalid(op.name(), "operand 0 is empty, expected a value");
  return inputs[0]->recorder().graph().record(op, graph::make_attrs<T>(std::move(attrs)), inputs);
}

template <OpStruct T>
Matrix record(std::initializer_list<Matrix> operands, typename T::Attrs attrs = {}) {
  TensorRef inputs[4];
  size_t n = 0;
  for (const Matrix& m : operands) inputs[n++] = m.tensor();
  return record_all<T>(std::span<const TensorRef>(inputs, n), std::move(attrs))[0];
}

// An op without operands.
template <OpStruct T>
Matrix record_on(const Engine& engine, typename T::Attrs attrs) {
  return Matrix(engine.core().graph().record(graph::op_def<T>(),
                                             graph::make_attrs<T>(std::move(attrs)), {})[0]);
}

// --- For gradient rules ---

inline Matrix input(const Gradient& g, u32 i) { return Matrix(g.inputs[i]); }
inline Matrix output(const Gradient& g, u32 i = 0) { return Matrix(g.outputs[i]); }
inline Matrix grad(const Gradient& g, u32 i = 0) { return Matrix(g.grads[i]); }

// What a rule returns: a value per input, empty ones where none is wanted.
inline std::vector<TensorRef> gradients(std::initializer_list<Matrix> list) {
  std::vector<TensorRef> refs;
  for (const Matrix& m : list) refs.push_back(m.tensor());
  return refs;
}

}  // namespace oa::matrix
