// Attention and what belongs to it: heads, masks, rotary positions.
//
// A query row whose keys are all masked gives zeros, and zero gradients, in every backend.
#pragma once

#include "oa/matrix/matrix.h"

namespace oa::ml {

// Standard keeps the S x S probabilities; Flash computes them again in the backward pass and needs
// no such memory. The values are the same up to rounding. Auto takes Flash.
enum class AttentionBackend : u8 { Auto, Standard, Flash };

namespace matrix {

struct AttentionOptions {
  f64 scale = 0;        // of the products; 0: 1 / sqrt(D)
  bool causal = false;  // query i sees keys 0 .. i
  // Float: added to the scaled products; Bool: true where a key is seen. Broadcasts to
  // [B, H, Sq, Sk]. No gradient.
  Matrix mask;
  // Layout of q, k and v: [B, H, S, D], or [B, S, H, D] as linear layers leave them.
  bool heads_inner = false;
  AttentionBackend backend = AttentionBackend::Auto;
  // Of the products (oa/core/precision.h). Flash rounds operands for F16 and BF16 where the device
  // has matrix units for them, and else is plain F32.
  Precision precision = Precision::Engine;
};

// q [B, H, Sq, D], k [B, Hk, Sk, D], v [B, Hk, Sk, D] -> q's shape: softmax(q kT scale + mask) v
// for each head. Hk divides H: that many query heads share each key head. Any lengths and sizes.
Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v,
                 const AttentionOptions& options = {});

// The same over q, k, v [N, S, D] with an additive mask [N S, S], or an empty one.
Matrix scaled_dot_product_attention(const Matrix& q, const Matrix& k, const Matrix& v,
                                    const Matrix& additive_mask, f64 scale, bool causal);
// q, k, v [B S, H D] -> [B S, H D], causal, scale 1 / sqrt(D).
Matrix scaled_dot_product_attention_causal(const Matrix& q, const Matrix& k, const Matrix& v,
                                           i64 sequence_length, i64 num_heads);
// q, k, v [N, S, D], causal, by the Flash backend.
Matrix flash_attention_causal(const Matrix& q, const Matrix& k, const Matrix& v, f64 scale);

// [rows, columns] of `like`'s dtype and engine: 0 where query i sees key j <= i, else -inf.
Matrix causal_mask(const Matrix& like, i64 rows, i64 columns);

// softmax(scores scale + mask) along the last axis; a row of -inf gives zeros. mask: shape of
// scores or one that broadcasts to it, no gradient.
Matrix softmax_scaled_masked(const Matrix& scores, const Matrix& mask, f64 scale);

// [B S, D] -> [B H, S, D / H], and back.
Matrix split_heads(const Matrix& x, i64 batch, i64 sequence_length, i64 num_heads);
Matrix merge_heads(const Matrix& x, i64 batch, i64 sequence_length, i64 num_heads);

// Rotary positions (Su et al., 2021): x [T, H D], D even; row t turns each pair (i, i + D/2) of a
// head by the angle (t + offset) theta^(-2 i / D).
Matrix rope(const Matrix& x, i64 num_heads, i64 head_dim, f64 theta_base, u32 position_offset);

}  // namespace matrix
}  // namespace oa::ml
