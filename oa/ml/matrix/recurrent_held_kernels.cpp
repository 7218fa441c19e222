// The recurrent scans of small hidden sizes on a GPU, by HeldScan.
#include "oa/kernel/math.h"
#include "oa/ml/matrix/recurrent_held.h"
#include "oa/ml/matrix/recurrent_kernels.h"

namespace oa::ml::matrix {
namespace {

using graph::ArgRef;
using graph::Lower;
using kernel::Buffer;
using kernel::Value;
using kernel::VarValue;
using Values = HeldScan::Values;
using Some = std::span<const Value>;

// Element k of the state before the first step.
std::function<Value(const Value&)> first_of(const HeldScan& f, i64 h,
                                            const std::optional<Buffer>& state) {
  if (!state) return nullptr;
  return [&f, h, from = *state](const Value& k) { return from.load(f.row() * f.at(h) + k); };
}

// The state before a position, in the lane's column.
Value held_before(const HeldScan& f, i64 h, const Buffer& y, const std::optional<Buffer>& state,
                  const HeldScan::Step& s) {
  const Value first = state ? state->load(f.row() * f.at(h) + f.column()) : f.number(0);
  return kernel::select(s.starts, first, y.load(f.place(s.before) * f.at(h) + f.column()));
}

}  // namespace

void held_rnn(Lower& l, const RnnScan::Attrs& a) {
  const i64 h = l.out().shape[2];
  HeldScan f(l, l.in(0).shape, h, 1, h, l.out().shape.elements(), false, a.reverse);
  const OptionalArgs optional(l, a.bias, a.state);
  std::vector<ArgRef> args = {l.input(0), l.input(1), l.output()};
  args.insert(args.end(), optional.args.begin(), optional.args.end());
  f.launch("rnn_scan", args, scan_flops(l.in(0).shape, h), [&] {
    const Buffer gates_i = f.param(), weight = f.param(), y = f.param();
    const OptionalBuffers buffers(f, optional);
    const auto element = [&f, h](const Value& now) { return f.place(now) * f.at(h) + f.column(); };
    const Value bias = buffers.bias ? buffers.bias->load(f.column()) : Value();
    return HeldScan::Body{
        .weight = weight,
        .first = first_of(f, h, buffers.state),
        .load = [=](const HeldScan::Step& s) { return Values{gates_i.load(element(s.now))}; },
        .step =
            [=, &f, biased = buffers.bias.has_value()](const HeldScan::Step& s, Some in,
                                                       Some sums) {
              Value x = in[0] + sums[0];
              if (biased) x = x + bias;
              const Value now = kernel::tanh(x);
              f.store([&] { y.store(element(s.now), now); });
              return Values{now};
            },
        .end = nullptr};
  });
}

void held_rnn_backward(Lower& l, const RnnScanBackward::Attrs& a) {
  const i64 h = l.out().shape[2];
  HeldScan f(l, l.in(0).shape, h, 1, h, l.out().shape.elements(), true, a.reverse);
  f.launch("rnn_scan_backward", {l.input(0), l.input(1), l.input(2), l.output()},
           scan_flops(l.in(0).shape, h), [&] {
             const Buffer grad = f.param(), y = f.param(), weight = f.param(), out = f.param();
             const auto element = [&f, h](const Value& now) {
               return f.place(now) * f.at(h) + f.column();
             };
             return HeldScan::Body{
                 .weight = weight,
                 .first = nullptr,
                 .load =
                     [=](const HeldScan::Step& s) {
                       return Values{grad.load(element(s.now)), y.load(element(s.now))};
                     },
                 .step =
                     [=, &f](const HeldScan::Step& s, Some in, Some sums) {
                       const Value d = (in[0] + sums[0]) * (f.number(1) - in[1] * in[1]);
                       f.store([&] { out.store(element(s.now), d); });
                       return Values{d};
                     },
                 .end = nullptr};
           });
}

void held_gru(Lower& l, const GruScan::Attrs& a) {
  const i64 h = l.out().shape[2];
  HeldScan f(l, l.in(0).shape, h, 3, h, l.out().shape.elements() * 4, false, a.reverse);
  const OptionalArgs optional(l, a.bias, a.state);
  std::vector<ArgRef> args = {l.input(0), l.input(1), l.output()};
  if (a.keep) args.push_back(l.output(1));
  args.insert(args.end(), optional.args.begin(), optional.args.end());
  f.launch("gru_scan", args, scan_flops(l.in(0).shape, h), [&] {
    const Buffer gates_i = f.param(), weight = f.param(), y = f.param();
    std::optional<Buffer> kept;
    if (a.keep) kept = f.param();
    const OptionalBuffers buffers(f, optional);
    Values bias;
    for (i64 g = 0; g < 3 && buffers.bias; ++g) {
      bias.push_back(buffers.bias->load(f.at(g * h) + f.column()));
    }
    const VarValue old(buffers.state ? buffers.state->load(f.row() * f.at(h) + f.column())
                                     : f.number(0));
    return HeldScan::Body{.weight = weight,
                          .first = first_of(f, h, buffers.state),
                          .load =
                              [=, &f](const HeldScan::Step& s) {
                                Values in;
                                const Value row = f.place(s.now) * f.at(3 * h) + f.column();
                                for (i64 g = 0; g < 3; ++g)
                                  in.push_back(gates_i.load(row + f.at(g * h)));
                                return in;
                              },
                          .step =
                              [=, &f](const HeldScan::Step& s, Some in, Some sums) {
                                const auto recurrent = [&](size_t g) {
                                  return bias.empty() ? sums[g] : sums[g] + bias[g];
                                };
                                const Value r = kernel::sigmoid(in[0] + recurrent(0));
                                const Value z = kernel::sigmoid(in[1] + recurrent(1));
                                const Value product = recurrent(2);
                                const Value n = kernel::tanh(kernel::fma(r, product, in[2]));
                                const Value now = kernel::fma(z, old.get() - n, n);
                                old.set(now);
                                f.store([&] {
                                  y.store(f.place(s.now) * f.at(h) + f.column(), now);
                                  if (!kept) return;
                                  const Value row = f.place(s.now) * f.at(4 * h) + f.column();
                                  const Value values[] = {r, z, n, product};
                                  for (i64 i = 0; i < 4; ++i)
                                    kept->store(row + f.at(i * h), values[i]);
                                });
                                return Values{now};
                              },
                          .end = nullptr};
  });
}

void held_gru_backward(Lower& l, const GruScanBackward::Attrs& a) {
  const i64 h = l.in(0).shape[2];
  HeldScan f(l, l.in(0).shape, h, 1, 3 * h, l.in(2).shape.elements(), true, a.reverse);
  std::vector<ArgRef> args = {l.input(0),  l.input(1),  l.input(2), l.input(3),
                              l.output(1), l.output(0), l.output(2)};
  if (a.state) args.push_back(l.input(4));
  f.launch("gru_scan_backward", args, 3 * scan_flops(l.in(0).shape, h), [&] {
    const Buffer grad = f.param(), y = f.param(), kept = f.param(), weight = f.param();
    const Buffer carry = f.param(), gates = f.param(), products = f.param();
    std::optional<Buffer> state;
    if (a.state) state = f.param();
    const VarValue carried(f.number(0));  // passes by the products
    return HeldScan::Body{
        .weight = weight,
        .first = nullptr,
        .load =
            [=, &f](const HeldScan::Step& s) {
              Values in = {grad.load(f.place(s.now) * f.at(h) + f.column()),
                           held_before(f, h, y, state, s)};
              const Value row = f.place(s.now) * f.at(4 * h) + f.column();
              for (i64 i = 0; i < 4; ++i) in.push_back(kept.load(row + f.at(i * h)));
              return in;
            },
        .step =
            [=, &f](const HeldScan::Step& s, Some in, Some sums) {
              const Value d = in[0] + carried.get() + sums[0], one = f.number(1);
              const Value r = in[2], z = in[3], n = in[4];
              const Value dn = d * (one - z) * (one - n * n);
              const Value dz = d * (in[1] - n) * z * (one - z);
              const Value dr = dn * in[5] * r * (one - r);
              carried.set(d * z);
              const Value of_gate[] = {dr, dz, dn * r};
              f.store([&] {
                const Value row = f.place(s.now) * f.at(3 * h) + f.column();
                for (i64 g = 0; g < 3; ++g) {
                  gates.store(row + f.at(g * h), g == 2 ? dn : of_gate[g]);
                  products.store(row + f.at(g * h), of_gate[g]);
                }
              });
              return Values(std::begin(of_gate), std::end(of_gate));
            },
        .end =
            [=, &f] {
              f.store([&] { carry.store(f.row() * f.at(h) + f.column(), carried.get()); });
            }};
  });
}

}  // namespace oa::ml::matrix
