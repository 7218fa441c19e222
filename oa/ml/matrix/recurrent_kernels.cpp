// The kernels of the recurrent scans. The weight's gradient needs nothing of them but the gradients
// of the gates: it is one product over all rows and steps, recorded by the gradient rules.
#include "oa/ml/matrix/recurrent_kernels.h"

#include <algorithm>

#include "oa/kernel/math.h"
#include "oa/ml/matrix/recurrent_frame.h"
#include "oa/ml/matrix/recurrent_held.h"
#include "oa/ml/matrix/recurrent_ops.h"

namespace oa::ml::matrix {
namespace {

using graph::ArgRef;
using graph::Lower;
using kernel::Bool;
using kernel::Buffer;
using kernel::U64;
using kernel::Value;
using kernel::VarValue;
using Carry = ScanFrame::Carry;
using Rows = ScanFrame::Rows;
using Step = ScanFrame::Step;
using Tile = ScanFrame::Tile;
using Weights = ScanFrame::Weights;

// The rows of the step before: of the result `y`, or the first state.
Rows state_rows(const ScanFrame& f, const Buffer& y, const std::optional<Buffer>& state,
                const Step& s) {
  const i64 h = f.hidden();
  if (!state) {
    return {y, [&f, s, h](const Value& row) { return f.place(row, s.carried) * f.at(h); }};
  }
  const U64 address = kernel::select(s.first, state->address(), y.address());
  return {Buffer(y.elem(), address), [&f, s, h](const Value& row) {
            return kernel::select(s.first, row, f.place(row, s.carried)) * f.at(h);
          }};
}

// Terms of the product with those rows: none before the first state.
Value state_terms(const ScanFrame& f, const std::optional<Buffer>& state, const Step& s) {
  if (state) return f.at(f.hidden());
  return kernel::select(s.first, f.at(0), f.at(f.hidden()));
}

// An element of the state before position `now`.
Value state_element(const ScanFrame& f, const Buffer& y, const std::optional<Buffer>& state,
                    const Bool& starts, const Value& before, const Value& row,
                    const Value& column) {
  const i64 h = f.hidden();
  const VarValue x(f.number(0));
  kernel::If(
      starts,
      [&] {
        if (state) x.set(state->load(row * f.at(h) + column));
      },
      [&] { x.set(y.load(f.place(row, before) * f.at(h) + column)); });
  return x.get();
}

// The state before the first step, for Carry.
Carry::Start first_state(const ScanFrame& f, const std::optional<Buffer>& state) {
  if (!state) return nullptr;
  return [&f, from = *state](const Value& row, const Value& k) {
    return from.load(row * f.at(f.hidden()) + k);
  };
}

// --- Gru, forward ---

class GruForward {
 public:
  GruForward(Lower& l, const GruScan::Attrs& a)
      : l_(l),
        a_(a),
        f_(l, l.in(0).shape, l.out().shape[2], 3, l.out().shape.elements() * 4, a.reverse),
        h_(f_.hidden()) {}

  void run() {
    const OptionalArgs optional(l_, a_.bias, a_.state);
    std::vector<ArgRef> args = {l_.input(0), f_.pack_transposed(l_.input(1), 3), l_.output()};
    if (GruScan::keeps(a_)) args.push_back(l_.output(1));
    args.insert(args.end(), optional.args.begin(), optional.args.end());
    f_.launch("gru_scan", args, scan_flops(l_.in(0).shape, h_), [&] {
      gates_i_ = f_.param();
      weights_ = Weights{f_.param(), 3, h_};
      y_ = f_.param();
      if (GruScan::keeps(a_)) kept_ = f_.param();
      const OptionalBuffers buffers(f_, optional);
      bias_ = buffers.bias;
      state_ = buffers.state;
      if (a_.reset_before) {
        f_.for_steps(false, [&](const Step& s) {
          gates(s);
          f_.join();
          candidates(s);
          f_.join();
        });
        return;
      }
      const Carry carry(f_, h_, first_state(f_, state_));
      f_.for_steps(false, [&](const Step& s) {
        all(s, carry);
        carry.join();
      });
    });
  }

 private:
  // Sum number `sum` with the bias of gate `gate`.
  Value recurrent(const Value& cell, const Value& column, i64 gate, i64 sum) const {
    const Value x = f_.sum(cell, sum);
    return bias_ ? x + bias_->load(f_.at(gate * h_) + column) : x;
  }
  Value input(const Value& place, const Value& column, i64 gate) const {
    return gates_i_->load(place * f_.at(3 * h_) + f_.at(gate * h_) + column);
  }
  Value kept_at(const Value& place, i64 which, const Value& column) const {
    return place * f_.at(4 * h_) + f_.at(which * h_) + column;
  }
  Value before(const Step& s, const Value& row, const Value& column) const {
    return state_element(f_, *y_, state_, s.first, s.carried, row, column);
  }
  Value finish(const Step& s, const Value& row, const Value& column, const Value& z,
               const Value& n) {
    const Value old = before(s, row, column), now = kernel::fma(z, old - n, n);
    y_->store(f_.place(row, s.now) * f_.at(h_) + column, now);
    return now;
  }

  void all(const Step& s, const Carry& carry) {
    const Rows rows = state_rows(f_, *y_, state_, s);
    f_.for_tiles([&](const Tile& tile) {
      for (i64 g = 0; g < 3; ++g) {
        f_.product(tile, s, carry, rows, *weights_, g, state_terms(f_, state_, s), g);
      }
      f_.for_elements(tile, [&](const Value& row, const Value& column, const Value& cell) {
        const Value place = f_.place(row, s.now);
        const Value r = kernel::sigmoid(input(place, column, 0) + recurrent(cell, column, 0, 0));
        const Value z = kernel::sigmoid(input(place, column, 1) + recurrent(cell, column, 1, 1));
        const Value product = recurrent(cell, column, 2, 2);
        const Value n = kernel::tanh(kernel::fma(r, product, input(place, column, 2)));
        if (kept_) {
          kept_->store(kept_at(place, 0, column), r);
          kept_->store(kept_at(place, 1, column), z);
          kept_->store(kept_at(place, 2, column), n);
          kept_->store(kept_at(place, 3, column), product);
        }
        carry.keep(s, row, column, finish(s, row, column, z, n));
      });
    });
  }

  // With the reset before the product, all of r h must be there before the candidates.
  void gates(const Step& s) {
    const Rows rows = state_rows(f_, *y_, state_, s);
    f_.for_tiles([&](const Tile& tile) {
      for (i64 g = 0; g < 2; ++g) {
        f_.product(tile, rows, *weights_, g, state_terms(f_, state_, s), 0, g);
      }
      f_.for_elements(tile, [&](const Value& row, const Value& column, const Value& cell) {
        const Value place = f_.place(row, s.now);
        const Value r = kernel::sigmoid(input(place, column, 0) + recurrent(cell, column, 0, 0));
        const Value z = kernel::sigmoid(input(place, column, 1) + recurrent(cell, column, 1, 1));
        kept_->store(kept_at(place, 0, column), r);
        kept_->store(kept_at(place, 1, column), z);
        kept_->store(kept_at(place, 3, column), r * before(s, row, column));
      });
    });
  }
  void candidates(const Step& s) {
    const Rows rows{*kept_, [&](const Value& row) {
                      return f_.place(row, s.now) * f_.at(4 * h_) + f_.at(3 * h_);
                    }};
    f_.for_tiles([&](const Tile& tile) {
      f_.product(tile, rows, *weights_, 2, state_terms(f_, state_, s), 0, 0);
      f_.for_elements(tile, [&](const Value& row, const Value& column, const Value& cell) {
        const Value place = f_.place(row, s.now);
        const Value n = kernel::tanh(input(place, column, 2) + recurrent(cell, column, 2, 0));
        kept_->store(kept_at(place, 2, column), n);
        finish(s, row, column, kept_->load(kept_at(place, 1, column)), n);
      });
    });
  }

  Lower& l_;
  GruScan::Attrs a_;
  ScanFrame f_;
  i64 h_;
  std::optional<Buffer> gates_i_, y_, kept_, bias_, state_;
  std::optional<Weights> weights_;
};

// --- Gru, backward ---

// D is the gradient of a step's result: what comes from outside, and from the step after it. The
// part of it that passes by the products waits in `carry` [B, H].
class GruBackward {
 public:
  GruBackward(Lower& l, const GruScanBackward::Attrs& a)
      : l_(l),
        a_(a),
        f_(l, l.in(0).shape, l.in(0).shape[2], 1, l.in(2).shape.elements(), a.reverse),
        h_(f_.hidden()) {}

  void run() {
    std::vector<ArgRef> args = {l_.input(0),  l_.input(1), l_.input(2), f_.pack(l_.input(3), 3),
                                l_.output(1), l_.output(0)};
    if (!a_.reset_before) args.push_back(l_.output(2));
    if (a_.state) args.push_back(l_.input(4));
    f_.launch("gru_scan_backward", args, 3 * scan_flops(l_.in(0).shape, h_), [&] {
      grad_ = f_.param();
      y_ = f_.param();
      kept_ = f_.param();
      weights_ = Weights{f_.param(), 1, 3 * h_};
      carry_ = f_.param();
      gates_ = f_.param();
      // Rows of products; where the reset comes first they are the gates' own gradients.
      products_ = a_.reset_before ? gates_ : f_.param();
      if (a_.state) state_ = f_.param();
      if (a_.reset_before) {
        f_.for_steps(true, [&](const Step& s) {
          outer(s, nullptr);
          f_.join();
          resets(s);
          f_.join();
        });
        return;
      }
      const Carry carry(f_, 3 * h_, nullptr);
      f_.for_steps(true, [&](const Step& s) {
        outer(s, &carry);
        carry.join();
      });
    });
  }

 private:
  Value kept(const Value& place, i64 which, const Value& column) const {
    return kept_->load(place * f_.at(4 * h_) + f_.at(which * h_) + column);
  }
  Value gate_at(const Value& place, i64 gate, const Value& column) const {
    return place * f_.at(3 * h_) + f_.at(gate * h_) + column;
  }
  Value before(const Step& s, const Value& row, const Value& column) const {
    return state_element(f_, *y_, state_, f_.starts(s.now), f_.before(s.now), row, column);
  }

  // What does not depend on a product of this step.
  void outer(const Step& s, const Carry* carry) {
    const i64 terms = (a_.reset_before ? 2 : 3) * h_;
    const Value count = kernel::select(s.first, f_.at(0), f_.at(terms));
    const Rows rows{*products_,
                    [&](const Value& row) { return f_.place(row, s.carried) * f_.at(3 * h_); }};
    f_.for_tiles([&](const Tile& tile) {
      if (carry) {
        f_.product(tile, s, *carry, rows, *weights_, 0, count, 0);
      } else {
        f_.product(tile, rows, *weights_, 0, count, 0, 0);
      }
      f_.for_elements(tile, [&](const Value& row, const Value& column, const Value& cell) {
        const Value place = f_.place(row, s.now);
        const Value carry_at = row * f_.at(h_) + column;
        const VarValue carried(f_.number(0));
        kernel::If(s.first, [] {}, [&] { carried.set(carry_->load(carry_at)); });
        const Value d = grad_->load(place * f_.at(h_) + column) + carried.get() + f_.sum(cell, 0);
        const Value z = kept(place, 1, column), n = kept(place, 2, column);
        const Value one = f_.number(1);
        const Value dn = d * (one - z) * (one - n * n);
        const Value dz = d * (before(s, row, column) - n) * z * (one - z);
        gates_->store(gate_at(place, 1, column), dz);
        gates_->store(gate_at(place, 2, column), dn);
        carry_->store(carry_at, d * z);
        if (a_.reset_before) return;
        const Value r = kept(place, 0, column);
        const Value dr = dn * kept(place, 3, column) * r * (one - r);
        gates_->store(gate_at(place, 0, column), dr);
        const Value of_gate[3] = {dr, dz, dn * r};
        for (i64 g = 0; g < 3; ++g) {
          products_->store(gate_at(place, g, column), of_gate[g]);
          carry->keep(s, row, f_.at(g * h_) + column, of_gate[g]);
        }
      });
    });
  }

  // With the reset before the product: through r h.
  void resets(const Step& s) {
    const Rows rows{*gates_, [&](const Value& row) {
                      return f_.place(row, s.now) * f_.at(3 * h_) + f_.at(2 * h_);
                    }};
    f_.for_tiles([&](const Tile& tile) {
      f_.product(tile, rows, *weights_, 0, f_.at(h_), 2 * h_, 0);
      f_.for_elements(tile, [&](const Value& row, const Value& column, const Value& cell) {
        const Value place = f_.place(row, s.now);
        const Value carry_at = row * f_.at(h_) + column;
        const Value d = f_.sum(cell, 0), r = kept(place, 0, column);
        gates_->store(gate_at(place, 0, column),
                      d * before(s, row, column) * r * (f_.number(1) - r));
        carry_->store(carry_at, kernel::fma(d, r, carry_->load(carry_at)));
      });
    });
  }

  Lower& l_;
  GruScanBackward::Attrs a_;
  ScanFrame f_;
  i64 h_;
  std::optional<Buffer> grad_, y_, kept_, carry_, gates_, products_, state_;
  std::optional<Weights> weights_;
};

}  // namespace

void RnnScan::lower(Lower& l, const Attrs& a) {
  if (l.out().shape.elements() == 0) return;
  const i64 h = l.out().shape[2];
  if (HeldScan::fits(l, h, 1, h)) return held_rnn(l, a);
  ScanFrame f(l, l.in(0).shape, h, 1, l.out().shape.elements(), a.reverse);
  const OptionalArgs optional(l, a.bias, a.state);
  std::vector<ArgRef> args = {l.input(0), f.pack_transposed(l.input(1), 1), l.output()};
  args.insert(args.end(), optional.args.begin(), optional.args.end());
  f.launch("rnn_scan", args, scan_flops(l.in(0).shape, h), [&] {
    const Buffer gates_i = f.param();
    const Weights weights{f.param(), 1, h};
    const Buffer y = f.param();
    const OptionalBuffers buffers(f, optional);
    const Carry carry(f, h, first_state(f, buffers.state));
    f.for_steps(false, [&](const Step& s) {
      const Rows rows = state_rows(f, y, buffers.state, s);
      f.for_tiles([&](const Tile& tile) {
        f.product(tile, s, carry, rows, weights, 0, state_terms(f, buffers.state, s), 0);
        f.for_elements(tile, [&](const Value& row, const Value& column, const Value& cell) {
          const Value place = f.place(row, s.now) * f.at(h) + column;
          Value x = gates_i.load(place) + f.sum(cell, 0);
          if (buffers.bias) x = x + buffers.bias->load(column);
          const Value now = kernel::tanh(x);
          y.store(place, now);
          carry.keep(s, row, column, now);
        });
      });
      carry.join();
    });
  });
}

void RnnScanBackward::lower(Lower& l, const Attrs& a) {
  if (l.out().shape.elements() == 0) return;
  const i64 h = l.out().shape[2];
  if (HeldScan::fits(l, h, 1, h)) return held_rnn_backward(l, a);
  ScanFrame f(l, l.in(0).shape, h, 1, l.out().shape.elements(), a.reverse);
  f.launch(
      "rnn_scan_backward", {l.input(0), l.input(1), f.pack(l.input(2), 1), l.output()},
      scan_flops(l.in(0).shape, h), [&] {
        const Buffer grad = f.param(), y = f.param();
        const Weights weights{f.param(), 1, h};
        const Buffer out = f.param();
        const Carry carry(f, h, nullptr);
        f.for_steps(true, [&](const Step& s) {
          const Rows rows{out, [&](const Value& row) { return f.place(row, s.carried) * f.at(h); }};
          const Value count = kernel::select(s.first, f.at(0), f.at(h));
          f.for_tiles([&](const Tile& tile) {
            f.product(tile, s, carry, rows, weights, 0, count, 0);
            f.for_elements(tile, [&](const Value& row, const Value& column, const Value& cell) {
              const Value place = f.place(row, s.now) * f.at(h) + column;
              const Value v = y.load(place);
              const Value d = (grad.load(place) + f.sum(cell, 0)) * (f.number(1) - v * v);
              out.store(place, d);
              carry.keep(s, row, column, d);
            });
          });
          carry.join();
        });
      });
}

void GruScan::lower(Lower& l, const Attrs& a) {
  if (l.out().shape.elements() == 0) return;
  const i64 h = l.out().shape[2];
  if (!a.reset_before && HeldScan::fits(l, h, 3, h)) return held_gru(l, a);
  GruForward(l, a).run();
}

void GruScanBackward::lower(Lower& l, const Attrs& a) {
  if (l.out().shape.elements() == 0) return;
  const i64 h = l.in(0).shape[2];
  if (!a.reset_before && HeldScan::fits(l, h, 1, 3 * h)) return held_gru_backward(l, a);
  GruBackward(l, a).run();
}

}  // namespace oa::ml::matrix
