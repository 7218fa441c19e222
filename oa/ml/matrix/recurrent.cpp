#include "oa/ml/matrix/recurrent.h"

#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/transcendental.h"
#include "oa/ml/matrix/ml_ops.h"
#include "oa/ml/matrix/recurrent_ops.h"
#include "oa/ml/matrix/recurrent_rules.h"

namespace oa::ml::matrix {
namespace {

using namespace oa::matrix;  // NOLINT: the ops of the layer below
using graph::Infer;
using graph::Samples;

std::vector<TensorRef> with_optional(std::initializer_list<Matrix> needed,
                                     std::initializer_list<Matrix> optional) {
  std::vector<TensorRef> list;
  for (const Matrix& m : needed) list.push_back(m.tensor());
  for (const Matrix& m : optional) {
    if (m.valid()) list.push_back(m.tensor());
  }
  return list;
}

// Numbers of 16 bits as F32: casts run inside the products and kernels around the scan.
Matrix wide(const Matrix& m) {
  const bool narrow = m.valid() && (m.dtype() == DType::F16 || m.dtype() == DType::BF16);
  return narrow ? cast(m, DType::F32) : m;
}
Matrix as_gates(const Matrix& result, const Matrix& gates_i) {
  return cast(result, gates_i.dtype());
}

Matrix recurrent_product(const Matrix& hidden, const Matrix& weight, const Matrix& bias) {
  const Matrix product = mat_mul_nt(hidden, weight);
  return bias.valid() ? product + bias : product;
}

struct RnnCell {
  static constexpr OpInfo kInfo{.name = "rnn_cell", .kind = OpKind::Composite};
  using Attrs = NoAttrs;
  static void infer(Infer& in, const Attrs&) {
    need_recurrent(in, 1, 2, in.count() > 3 ? 3 : 0, 1, 2);
    in.out(in.dtype(0), in.shape(1));
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs&) {
    const Matrix bias = in.size() > 3 ? Matrix(in[3]) : Matrix();
    return {tanh(Matrix(in[0]) + recurrent_product(in[1], in[2], bias)).tensor()};
  }
  static void samples(Samples& s) {
    s.call({{{3, 5}}, {{3, 5}}, {{5, 5}}, {{5}}}, Attrs{});
    s.call({{{1, 1}}, {{1, 1}}, {{1, 1}}}, Attrs{});
    s.call({{{2, 4}, DType::F64}, {{2, 4}, DType::F64}, {{4, 4}, DType::F64}}, Attrs{});
    s.call({{{0, 3}}, {{0, 3}}, {{3, 3}}, {{3}}}, Attrs{});
    s.reject({{{3, 4}}, {{3, 5}}, {{4, 4}}}, Attrs{},
             "rnn_cell: state does not fit, got f32 [3, 5], expected f32 [3, 4]");
    s.reject({{{3, 5}}, {{3, 5}}, {{5, 5}}, {{4}}}, Attrs{},
             "rnn_cell: bias does not fit, got f32 [4], expected f32 [5]");
  }
};

struct GruCell {
  static constexpr OpInfo kInfo{.name = "gru_cell", .kind = OpKind::Composite};
  struct Attrs {
    bool reset_before;
  };
  static void infer(Infer& in, const Attrs&) {
    need_recurrent(in, 3, 2, in.count() > 3 ? 3 : 0, 1, 2);
    in.out(in.dtype(0), in.shape(1));
  }
  static std::vector<TensorRef> define(std::span<const TensorRef> in, const Attrs& a) {
    const Matrix gates(in[0]), hidden(in[1]), weight(in[2]);
    const Matrix bias = in.size() > 3 ? Matrix(in[3]) : Matrix();
    const i64 h = hidden.shape()[1];
    const auto part = [&](const Matrix& m, i64 first, i64 count) {
      return m.valid() ? slice(m, -1, first * h, (first + count) * h) : m;
    };
    const auto rows = [&](i64 first, i64 count) {
      return slice(weight, 0, first * h, (first + count) * h);
    };
    Matrix r, z, n;
    if (a.reset_before) {
      const Matrix rz =
          sigmoid(part(gates, 0, 2) + recurrent_product(hidden, rows(0, 2), part(bias, 0, 2)));
      r = part(rz, 0, 1);
      z = part(rz, 1, 1);
      n = tanh(part(gates, 2, 1) + recurrent_product(r * hidden, rows(2, 1), part(bias, 2, 1)));
    } else {
      const Matrix product = recurrent_product(hidden, weight, bias);
      r = sigmoid(part(gates, 0, 1) + part(product, 0, 1));
      z = sigmoid(part(gates, 1, 1) + part(product, 1, 1));
      n = tanh(part(gates, 2, 1) + r * part(product, 2, 1));
    }
    return {(n + z * (hidden - n)).tensor()};
  }
  static void samples(Samples& s) {
    for (bool before : {false, true}) {
      s.call({{{3, 15}}, {{3, 5}}, {{15, 5}}, {{15}}}, Attrs{before});
      s.call({{{1, 3}}, {{1, 1}}, {{3, 1}}}, Attrs{before});
      s.call({{{0, 6}}, {{0, 2}}, {{6, 2}}, {{6}}}, Attrs{before});
    }
    s.call({{{2, 12}, DType::F64}, {{2, 4}, DType::F64}, {{12, 4}, DType::F64}}, Attrs{false});
    s.reject({{{3, 14}}, {{3, 5}}, {{15, 5}}}, Attrs{false},
             "gru_cell: gates do not fit, got [3, 14], expected [B, 3 H]");
    s.reject({{{3, 15}}, {{3, 5}}, {{15, 4}}}, Attrs{false},
             "gru_cell: weight does not fit, got f32 [15, 4], expected f32 [15, 5]");
  }
};

}  // namespace

OpList recurrent_ops() {
  return graph::op_list<RnnCell, GruCell, RnnScan, RnnScanBackward, GruScan, GruScanBackward>();
}

Matrix rnn_cell(const Matrix& gates_i, const Matrix& hidden, const Matrix& weight_hh,
                const Matrix& bias_hh) {
  return as_gates(
      record_all<RnnCell>(
          with_optional({wide(gates_i), wide(hidden), wide(weight_hh)}, {wide(bias_hh)}), {})[0],
      gates_i);
}

Matrix rnn_scan(const Matrix& gates_i, const Matrix& weight_hh, const Matrix& bias_hh,
                const RnnScanOptions& options) {
  return as_gates(record_all<RnnScan>(with_optional({wide(gates_i), wide(weight_hh)},
                                                    {wide(bias_hh), wide(options.state)}),
                                      {bias_hh.valid(), options.state.valid(), options.reverse})[0],
                  gates_i);
}

Matrix gru_cell(const Matrix& gates_i, const Matrix& hidden, const Matrix& weight_hh,
                const Matrix& bias_hh, GruReset reset) {
  return as_gates(record_all<GruCell>(with_optional({wide(gates_i), wide(hidden), wide(weight_hh)},
                                                    {wide(bias_hh)}),
                                      {reset == GruReset::BeforeProduct})[0],
                  gates_i);
}

Matrix gru_scan(const Matrix& gates_i, const Matrix& weight_hh, const Matrix& bias_hh,
                const GruScanOptions& options) {
  // Only a tape has a use for the gates.
  const bool keep = graph::observer() != nullptr;
  return as_gates(record_all<GruScan>(with_optional({wide(gates_i), wide(weight_hh)},
                                                    {wide(bias_hh), wide(options.state)}),
                                      {bias_hh.valid(), options.state.valid(), options.reverse,
                                       options.reset == GruReset::BeforeProduct, keep})[0],
                  gates_i);
}

}  // namespace oa::ml::matrix
