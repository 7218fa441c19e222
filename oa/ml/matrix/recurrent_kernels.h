// What the files with the kernels of the recurrent scans share.
#pragma once

#include <optional>
#include <vector>

#include "oa/graph/lower.h"
#include "oa/kernel/lang.h"
#include "oa/ml/matrix/recurrent_ops.h"

namespace oa::ml::matrix {

// Parameters that a scan may lack.
struct OptionalArgs {
  std::vector<graph::ArgRef> args;
  bool bias = false, state = false;

  OptionalArgs(const graph::Lower& l, bool has_bias, bool has_state)
      : bias(has_bias), state(has_state) {
    u32 next = 2;
    if (bias) args.push_back(l.input(next++));
    if (state) args.push_back(l.input(next));
  }
};

struct OptionalBuffers {
  std::optional<kernel::Buffer> bias, state;
  template <class Frame>
  OptionalBuffers(const Frame& f, const OptionalArgs& o) {
    if (o.bias) bias = f.param();
    if (o.state) state = f.param();
  }
};

inline f64 scan_flops(const Shape& gates_i, i64 hidden) {
  return 2.0 * static_cast<f64>(gates_i.elements()) * static_cast<f64>(hidden);
}

// The scans by HeldScan, where it fits.
void held_rnn(graph::Lower& l, const RnnScan::Attrs& a);
void held_rnn_backward(graph::Lower& l, const RnnScanBackward::Attrs& a);
void held_gru(graph::Lower& l, const GruScan::Attrs& a);
void held_gru_backward(graph::Lower& l, const GruScanBackward::Attrs& a);

}  // namespace oa::ml::matrix
