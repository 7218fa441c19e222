// Shape rules, gradients and samples of the recurrent scans.
#include "oa/ml/matrix/recurrent_ops.h"

#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "oa/ml/matrix/recurrent_rules.h"

namespace oa::ml::matrix {
namespace {

using namespace oa::matrix;  // NOLINT: the ops of the layer below
using graph::Infer;
using graph::Samples;

void need_spec(const Infer& in, u32 i, const Shape& shape, std::string_view what) {
  if (in.shape(i) != shape || in.dtype(i) != in.dtype(0)) {
    in.reject("{} does not fit, got {} {}, expected {} {}", what, token(in.dtype(i)), in.shape(i),
              token(in.dtype(0)), shape);
  }
}

// The states that the steps started from, [B, S, H].
Matrix states_before(const Matrix& y, const Matrix& state, bool reverse) {
  const i64 steps = y.shape()[1];
  if (steps == 0) return y;
  const Matrix rest = reverse ? slice(y, 1, 1, steps) : slice(y, 1, 0, steps - 1);
  if (!state.valid()) return reverse ? pad(rest, 1, 0, 1) : pad(rest, 1, 1, 0);
  const Matrix first = state.unsqueeze(1);
  return reverse ? concat({rest, first}, 1) : concat({first, rest}, 1);
}

// [B, S, N] -> [B S, N].
Matrix flat(const Matrix& x) {
  const Shape& s = x.shape();
  return x.reshape({s[0] * s[1], s[2]});
}

// [B, S, N] -> [B, N]: the scan's first step.
Matrix first_step(const Matrix& x, bool reverse) {
  const i64 steps = x.shape()[1], at = reverse ? steps - 1 : 0;
  return slice(x, 1, at, at + 1).reshape({x.shape()[0], x.shape()[2]});
}

// Operands of a scan by name.
struct Operands {
  Matrix gates_i, weight, state;
  size_t bias_at = 0, state_at = 0;  // positions, 0: none
  Operands(const graph::Gradient& g, bool bias, bool has_state)
      : gates_i(oa::matrix::input(g, 0)), weight(oa::matrix::input(g, 1)) {
    size_t next = 2;
    if (bias) bias_at = next++;
    if (has_state) state = oa::matrix::input(g, static_cast<u32>(state_at = next));
  }
};

}  // namespace

void need_recurrent(const Infer& in, i64 gates, u32 rank, u32 bias, u32 state, u32 weight) {
  const Shape& x = in.shape(0);
  if (in.dtype(0) != DType::F32 && in.dtype(0) != DType::F64) {
    in.reject("gates have the wrong dtype, got {}, expected f32 or f64", token(in.dtype(0)));
  }
  if (x.rank() != rank || x[rank - 1] % gates != 0) {
    in.reject("gates do not fit, got {}, expected [B, {}{}H]", x, rank == 3 ? "S, " : "",
              gates == 1 ? "" : fmt::format("{} ", gates));
  }
  const i64 hidden = x[rank - 1] / gates;
  if (weight > 0) need_spec(in, weight, {gates * hidden, hidden}, "weight");
  if (bias > 0) need_spec(in, bias, {gates * hidden}, "bias");
  if (state > 0) need_spec(in, state, {x[0], hidden}, "state");
}

// --- Rnn ---

void RnnScan::infer(Infer& in, const Attrs& a) {
  const u32 bias = a.bias ? 2 : 0, state = a.state ? 2 + static_cast<u32>(a.bias) : 0;
  need_recurrent(in, 1, 3, bias, state, 1);
  in.out(in.dtype(0), in.shape(0));
}

std::vector<TensorRef> RnnScan::gradient(const graph::Gradient& g, const Attrs& a) {
  std::vector<TensorRef> result(g.inputs.size());
  if (!g.grads[0]) return result;
  const Operands of(g, a.bias, a.state);
  const Matrix y = oa::matrix::output(g);
  const Matrix d =
      record<RnnScanBackward>({oa::matrix::grad(g), y, of.weight}, {.reverse = a.reverse});
  result[0] = d.tensor();
  if (g.wanted[1]) {
    result[1] = mat_mul_tn(flat(d), flat(states_before(y, of.state, a.reverse))).tensor();
  }
  if (of.bias_at > 0 && g.wanted[of.bias_at]) result[of.bias_at] = sum(flat(d), 0).tensor();
  if (of.state_at > 0 && g.wanted[of.state_at]) {
    result[of.state_at] =
        (y.shape()[1] == 0 ? full_like(of.state, 0)
                           : oa::matrix::mat_mul(first_step(d, a.reverse), of.weight))
            .tensor();
  }
  return result;
}

void RnnScan::samples(Samples& s) {
  s.call({{{3, 4, 5}}, {{5, 5}}, {{5}}, {{3, 5}}}, Attrs{true, true, false});
  s.call({{{3, 4, 5}}, {{5, 5}}, {{5}}, {{3, 5}}}, Attrs{true, true, true});
  s.call({{{2, 3, 17}}, {{17, 17}, DType::F32, -1, 1}}, Attrs{false, false, true});
  s.call({{{1, 5, 1}}, {{1, 1}}, {{1}}}, Attrs{true, false, false});
  s.call({{{2, 1, 3}}, {{3, 3}}, {{2, 3}}}, Attrs{false, true, false});
  s.call({{{2, 3, 4}, DType::F64}, {{4, 4}, DType::F64}}, Attrs{false, false, false});
  s.call({{{0, 3, 4}}, {{4, 4}}}, Attrs{false, false, false});
  s.call({{{2, 0, 4}}, {{4, 4}}, {{2, 4}}}, Attrs{false, true, false});
  s.reject({{{3, 4}}, {{4, 4}}}, Attrs{false, false, false},
           "rnn_scan: gates do not fit, got [3, 4], expected [B, S, H]");
  s.reject({{{3, 2, 4}}, {{4, 3}}}, Attrs{false, false, false},
           "rnn_scan: weight does not fit, got f32 [4, 3], expected f32 [4, 4]");
  s.reject({{{3, 2, 4}}, {{4, 4}}, {{3, 5}}}, Attrs{false, true, false},
           "rnn_scan: state does not fit, got f32 [3, 5], expected f32 [3, 4]");
  s.reject({{{3, 2, 4}, DType::F16}, {{4, 4}, DType::F16}}, Attrs{false, false, false},
           "rnn_scan: gates have the wrong dtype, got f16, expected f32 or f64");
}

void RnnScanBackward::infer(Infer& in, const Attrs&) {
  need_recurrent(in, 1, 3, 0, 0, 2);
  need_spec(in, 1, in.shape(0), "result");
  in.out(in.dtype(0), in.shape(0));
}

void RnnScanBackward::samples(Samples& s) {
  for (bool reverse : {false, true}) {
    s.call({{{3, 4, 5}}, {{3, 4, 5}, DType::F32, -0.9, 0.9}, {{5, 5}}}, Attrs{reverse});
  }
  s.reject({{{3, 4, 5}}, {{3, 4, 6}}, {{5, 5}}}, Attrs{false},
           "rnn_scan_backward: result does not fit, got f32 [3, 4, 6], expected f32 [3, 4, 5]");
}

// --- Gru ---

void GruScan::infer(Infer& in, const Attrs& a) {
  const u32 bias = a.bias ? 2 : 0, state = a.state ? 2 + static_cast<u32>(a.bias) : 0;
  need_recurrent(in, 3, 3, bias, state, 1);
  const Shape& x = in.shape(0);
  const i64 hidden = x[2] / 3;
  in.out(in.dtype(0), {x[0], x[1], hidden});
  if (keeps(a)) in.out(in.dtype(0), {x[0], x[1], 4 * hidden});
}

std::vector<TensorRef> GruScan::gradient(const graph::Gradient& g, const Attrs& a) {
  std::vector<TensorRef> result(g.inputs.size());
  if (!g.grads[0]) return result;
  const Operands of(g, a.bias, a.state);
  const Matrix y = oa::matrix::output(g);
  const i64 h = y.shape()[2];
  // A scan that was recorded without the gates runs again.
  TensorRef kept;
  if (keeps(a)) {
    kept = g.outputs[1];
  } else {
    Attrs again = a;
    again.keep = true;
    kept = record_all<GruScan>(g.inputs, again)[1];
  }
  std::vector<TensorRef> in = {g.grads[0], y.tensor(), kept, of.weight.tensor()};
  if (a.state) in.push_back(of.state.tensor());
  const auto grads = record_all<GruScanBackward>(
      in, {.state = a.state, .reverse = a.reverse, .reset_before = a.reset_before});
  const Matrix gates(grads[0]), carry(grads[1]);
  const Matrix products(a.reset_before ? grads[0] : grads[2]);
  result[0] = grads[0];
  if (g.wanted[1]) {
    const Matrix before = flat(states_before(y, of.state, a.reverse));
    if (a.reset_before) {
      const Matrix d = flat(gates), reset = flat(slice(Matrix(kept), 2, 3 * h, 4 * h));
      result[1] = concat({mat_mul_tn(slice(d, 1, 0, 2 * h), before),
                          mat_mul_tn(slice(d, 1, 2 * h, 3 * h), reset)},
                         0)
                      .tensor();
    } else {
      result[1] = mat_mul_tn(flat(products), before).tensor();
    }
  }
  if (of.bias_at > 0 && g.wanted[of.bias_at]) {
    result[of.bias_at] = sum(flat(products), 0).tensor();
  }
  if (of.state_at > 0 && g.wanted[of.state_at]) {
    if (y.shape()[1] == 0) {
      result[of.state_at] = full_like(of.state, 0).tensor();
    } else {
      // The candidate's way with the reset before its product is part of what was carried.
      const i64 rows = a.reset_before ? 2 * h : 3 * h;
      const Matrix d = slice(first_step(products, a.reverse), 1, 0, rows);
      result[of.state_at] = (carry + oa::matrix::mat_mul(d, slice(of.weight, 0, 0, rows))).tensor();
    }
  }
  return result;
}

void GruScan::samples(Samples& s) {
  for (bool before : {false, true}) {
    s.call({{{3, 4, 15}}, {{15, 5}}, {{15}}, {{3, 5}}}, Attrs{true, true, false, before, false});
    s.call({{{3, 4, 15}}, {{15, 5}}, {{15}}, {{3, 5}}}, Attrs{true, true, true, before, true});
    s.call({{{2, 3, 51}}, {{51, 17}, DType::F32, -1, 1}}, Attrs{false, false, true, before, false});
    s.call({{{1, 5, 3}}, {{3, 1}}, {{3}}}, Attrs{true, false, false, before, true});
    s.call({{{2, 1, 9}}, {{9, 3}}, {{2, 3}}}, Attrs{false, true, false, before, false});
    s.call({{{2, 3, 12}, DType::F64}, {{12, 4}, DType::F64}},
           Attrs{false, false, false, before, true});
    s.call({{{0, 3, 12}}, {{12, 4}}}, Attrs{false, false, false, before, false});
    s.call({{{2, 0, 12}}, {{12, 4}}, {{2, 4}}}, Attrs{false, true, false, before, false});
  }
  s.reject({{{3, 2, 4}}, {{4, 4}}}, Attrs{false, false, false, false, false},
           "gru_scan: gates do not fit, got [3, 2, 4], expected [B, S, 3 H]");
  s.reject({{{3, 2, 6}}, {{6, 2}}, {{2}}}, Attrs{true, false, false, false, false},
           "gru_scan: bias does not fit, got f32 [2], expected f32 [6]");
  s.reject({{{3, 2, 6}}, {{6, 2}, DType::F64}}, Attrs{false, false, false, false, false},
           "gru_scan: weight does not fit, got f64 [6, 2], expected f32 [6, 2]");
}

void GruScanBackward::infer(Infer& in, const Attrs& a) {
  need_recurrent(in, 1, 3, 0, a.state ? 4 : 0, 0);
  const Shape& x = in.shape(0);
  const i64 hidden = x[2];
  need_spec(in, 1, x, "result");
  need_spec(in, 2, {x[0], x[1], 4 * hidden}, "second result");
  need_spec(in, 3, {3 * hidden, hidden}, "weight");
  const Shape gates{x[0], x[1], 3 * hidden};
  in.out(in.dtype(0), gates);
  in.out(in.dtype(0), {x[0], hidden});
  if (!a.reset_before) in.out(in.dtype(0), gates);
}

void GruScanBackward::samples(Samples& s) {
  for (bool before : {false, true}) {
    const graph::SampleOperand kept{{3, 4, 20}, DType::F32, 0.1, 0.9};
    s.call({{{3, 4, 5}}, {{3, 4, 5}}, kept, {{15, 5}}}, Attrs{false, false, before});
    s.call({{{3, 4, 5}}, {{3, 4, 5}}, kept, {{15, 5}}, {{3, 5}}}, Attrs{true, true, before});
  }
  s.reject({{{3, 4, 5}}, {{3, 4, 5}}, {{3, 4, 15}}, {{15, 5}}}, Attrs{false, false, false},
           "gru_scan_backward: second result does not fit, got f32 [3, 4, 15], expected f32 [3, 4, "
           "20]");
}

}  // namespace oa::ml::matrix
