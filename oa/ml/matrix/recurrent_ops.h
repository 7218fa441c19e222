// The recurrent scans and their backward passes as ops; the kernels are in recurrent_kernels.cpp.
//
// Operand 0 of a scan is gates_i [B, S, G H], then the weight [G H, H], a bias [G H] if
// Attrs::bias, and the state before the first step [B, H] if Attrs::state. G is 1 for the Rnn and
// 3 for the Gru, whose rows are those of the reset gate, the update gate and the candidate.
#pragma once

#include "oa/matrix/record.h"

namespace oa::ml::matrix {

struct RnnScan {
  static constexpr graph::OpInfo kInfo{.name = "rnn_scan", .kind = graph::OpKind::Kernel};
  struct Attrs {
    bool bias;
    bool state;
    bool reverse;
  };
  static void infer(graph::Infer& in, const Attrs& a);
  static void lower(graph::Lower& l, const Attrs& a);
  static std::vector<graph::TensorRef> gradient(const graph::Gradient& g, const Attrs& a);
  static void samples(graph::Samples& s);
};

// Gradient of the result, result, weight -> gradient of gates_i.
struct RnnScanBackward {
  static constexpr graph::OpInfo kInfo{.name = "rnn_scan_backward", .kind = graph::OpKind::Kernel};
  struct Attrs {
    bool reverse;
  };
  static void infer(graph::Infer& in, const Attrs& a);
  static void lower(graph::Lower& l, const Attrs& a);
  static void samples(graph::Samples& s);
};

struct GruScan {
  static constexpr graph::OpInfo kInfo{.name = "gru_scan", .kind = graph::OpKind::Kernel};
  struct Attrs {
    bool bias;
    bool state;
    bool reverse;
    bool reset_before;
    bool keep;  // a second result for the backward pass, see keeps()
  };
  // The second result is [B, S, 4 H]: reset gate, update gate, candidate, and the candidate's
  // recurrent product with its bias; with reset_before, which always has it, instead of that
  // product the state times the reset gate.
  static bool keeps(const Attrs& a) { return a.keep || a.reset_before; }
  static void infer(graph::Infer& in, const Attrs& a);
  static void lower(graph::Lower& l, const Attrs& a);
  static std::vector<graph::TensorRef> gradient(const graph::Gradient& g, const Attrs& a);
  static void samples(graph::Samples& s);
};

// Gradient of the result, result, second result, weight, and the first state if Attrs::state ->
// gradient of gates_i, what the first state gets by other ways than the products with the weight
// that all steps share [B, H], and unless reset_before the gradient of those products [B, S, 3 H].
struct GruScanBackward {
  static constexpr graph::OpInfo kInfo{.name = "gru_scan_backward", .kind = graph::OpKind::Kernel};
  struct Attrs {
    bool state;
    bool reverse;
    bool reset_before;
  };
  static void infer(graph::Infer& in, const Attrs& a);
  static void lower(graph::Lower& l, const Attrs& a);
  static void samples(graph::Samples& s);
};

}  // namespace oa::ml::matrix
