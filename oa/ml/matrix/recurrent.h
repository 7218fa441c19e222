// Recurrent layers as operations: one step (cells) and whole sequences (scans).
//
// gates_i is the input's share of the gates, x W_ihT + b_ih, for all steps at once. Hidden sizes,
// batches and lengths may be anything. Operands are F32, or F64 on devices that have it, all alike;
// else InvalidArgument. Any of them may be F16 or BF16 in place of F32: states and sums are F32
// from step to step, and the results, of the dtype of gates_i, are rounded at the end; gradients
// have the dtypes of the operands.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::ml {

// Where the reset gate of a Gru acts: on the candidate's recurrent product with its bias, as in
// PyTorch and cuDNN, or on the state before that product (Cho et al., 2014).
enum class GruReset : u8 { AfterProduct, BeforeProduct };

namespace matrix {

struct RnnScanOptions {
  Matrix state;          // [B, H] before the first step; empty: zeros
  bool reverse = false;  // the first step is the last position, and results stay at their positions
};

struct GruScanOptions {
  Matrix state;
  bool reverse = false;
  GruReset reset = GruReset::AfterProduct;
};

// gates_i [B, H], hidden [B, H], weight_hh [H, H], bias_hh [H] or empty -> [B, H]:
// tanh(gates_i + W h + b).
Matrix rnn_cell(const Matrix& gates_i, const Matrix& hidden, const Matrix& weight_hh,
                const Matrix& bias_hh = {});

// The same for every step: gates_i [B, S, H] -> states [B, S, H].
Matrix rnn_scan(const Matrix& gates_i, const Matrix& weight_hh, const Matrix& bias_hh = {},
                const RnnScanOptions& options = {});

// gates_i [B, 3 H], hidden [B, H], weight_hh [3 H, H], bias_hh [3 H] or empty -> [B, H]. Rows of
// the gates: reset r, update z, candidate n.
//   r, z = sigmoid(gates_i + W h + b);  n = tanh(gates_i + r (W h + b));  h' = (1 - z) n + z h
// With GruReset::BeforeProduct n = tanh(gates_i + W (r h) + b).
Matrix gru_cell(const Matrix& gates_i, const Matrix& hidden, const Matrix& weight_hh,
                const Matrix& bias_hh = {}, GruReset reset = GruReset::AfterProduct);

// The same for every step: gates_i [B, S, 3 H] -> states [B, S, H].
Matrix gru_scan(const Matrix& gates_i, const Matrix& weight_hh, const Matrix& bias_hh = {},
                const GruScanOptions& options = {});

}  // namespace matrix
}  // namespace oa::ml
