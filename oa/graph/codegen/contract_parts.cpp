#include "oa/graph/codegen/contract_parts.h"

#include <string>

namespace oa::graph {

using kernel::Buffer;
using kernel::F32;
using kernel::Shared;
using kernel::U32;
using kernel::Value;
using kernel::VarValue;

namespace {

constexpr u32 kLines = kPartLines;
constexpr u32 kPassDepth = kPartDepth;
constexpr i64 kSlicesAtMost = 32;  // of k, in the passes
// Largest scaled element: [2^14, 2^15), so that 2^15 is still a half.
constexpr u32 kLargest = 14;

U32 bits_of(const Value& x) { return kernel::bitcast<U32>(x); }

// The high bits of x, rounded to nearest even; the rest is exact. `power` is 2^(dropped bits) + 1.
F32 high_part(const F32& x, f32 power) {
  const F32 wide = x * F32(power);
  return wide - (wide - x);
}

// The bits of a half, rounded to nearest even.
U32 half_bits(const F32& x) {
  const U32 a = magnitude_bits(x);
  const U32 normal = (a - U32(0x3800'0000u - 0xfff) + ((a >> U32(13)) & U32(1))) >> U32(13);
  const U32 subnormal = bits_of(kernel::abs(x) + F32(0.5f)) - U32(0x3f00'0000);
  return kernel::select(a < U32(0x3880'0000), subnormal, normal) |
         ((bits_of(x) >> U32(16)) & U32(0x8000));
}

U32 bfloat_bits(const F32& x) {
  const U32 b = bits_of(x);
  return (b + U32(0x7fff) + ((b >> U32(16)) & U32(1))) >> U32(16);
}

}  // namespace

U32 magnitude_bits(const Value& x) { return bits_of(x) & U32(0x7fff'ffff); }

std::vector<F32> parts_of(const F32& x, const SplitForm& form) {
  const f32 power = form.elem == kernel::Scalar::F16 ? 0x1p13f + 1 : 0x1p16f + 1;
  std::vector<F32> parts;
  F32 rest = x;
  while (parts.size() + 1 < form.parts) {
    parts.push_back(high_part(rest, power));
    rest = rest - parts.back();
  }
  parts.push_back(rest);
  return parts;
}

U32 is_small(const F32& x, const SplitForm& form) {
  // One comparison for: not zero, and below the smallest.
  const U32 limit = bits_of(F32(form.smallest)) - U32(1);
  return kernel::select(magnitude_bits(x) - U32(1) < limit, U32(1), U32(0));
}

U32 scale_field(const U32& largest) {
  const U32 exponent = largest >> U32(23);
  return U32(kernel::min(U32(2 * 127 + kLargest) - U32(kernel::min(exponent, U32(254))), U32(253)));
}

SplitForm split_form(Precision p) {
  if (p == Precision::F32x3) return {kernel::Scalar::F16, 2, 0x1p-2f};
  return {kernel::Scalar::BF16, 3, 0x1p-100f};
}

template <class Body>
void OperandSplit::add(Launches& out, const char* name, const std::vector<u32>& written,
                       const std::vector<u32>& read, i64 groups, const Body& body) {
  Launch launch = c_.make_launch(false);
  launch.label = std::string("split ") + name;
  launch.flops = 0;
  for (u32 t : written) launch.args.push_back(ArgRef::temporary(t, true));
  for (u32 t : read) launch.args.push_back(ArgRef::temporary(t));
  launch.groups = group_count(c_.in(), groups);
  launch.kernel = kernel::trace(std::string("split_") + name, c_.in().target, width_, [&] {
    c_.declare(false);
    std::vector<Buffer> params;
    for (size_t i = 0; i < written.size() + read.size(); ++i) {
      params.push_back(kernel::param_buffer(kernel::Scalar::U32));
    }
    find_place();
    body(params);
  });
  out.list.push_back(std::move(launch));
}

template <class Body>
void OperandSplit::each_tile(const Body& body) {
  const Value first = slice_at_ * c_.index(slice_);
  const bool whole = depth_ % slice_ == 0;
  const Value length =
      whole ? c_.index(slice_) : kernel::min(c_.index(slice_), c_.index(depth_) - first);
  // The next tile is on its way while this one is worked on; past the end the last is read again.
  const Value last = c_.index(depth_ - kPassDepth);
  std::vector<std::vector<VarValue>> ahead(source_.units());
  for (u32 u = 0; u < source_.units(); ++u) {
    for (const Value& v : source_.pack(at_, source_.spot(u), first)) ahead[u].emplace_back(v);
  }
  kernel::For(c_.index(0), length, c_.index(kPassDepth), [&](const Value& step) {
    const Value k = first + step;
    const Value next = kernel::min(k + c_.index(kPassDepth), last);
    std::vector<std::vector<Value>> packs(source_.units());
    for (u32 u = 0; u < source_.units(); ++u) {
      for (const VarValue& v : ahead[u]) packs[u].push_back(v.get());
      const std::vector<Value> coming = source_.pack(at_, source_.spot(u), next);
      for (size_t i = 0; i < coming.size(); ++i) ahead[u][i].set(coming[i]);
    }
    body(k, packs);
  });
}

template <class Body>
void OperandSplit::each_line(const Body& body) {
  kernel::For(kernel::lane(), U32(kLines), U32(width_), body);
}

OperandSplit::OperandSplit(ContractNest& c, const SplitForm& form, u32 operand, i64 batches,
                           i64 lines, i64 depth)
    : c_(c),
      form_(form),
      operand_(operand),
      batches_(batches),
      lines_(lines),
      depth_(depth),
      width_(c.in().target.width),
      source_(c, operand, kLines, kPassDepth, 4, width_, depth) {
  slice_ = std::max<i64>(128, ceil_div(ceil_div(depth, kSlicesAtMost), kPassDepth) * kPassDepth);
  slice_ = std::min(slice_, depth);
  const i64 most = 2 * c.in().target.threads;
  while (slice_ < 512 && batches_ * blocks() * slices() > most) slice_ *= 2;
}

void OperandSplit::add_temps(Launches& out) {
  const u64 all = static_cast<u64>(batches_ * lines_);
  maxima_ = out.add_temp(all * static_cast<u64>(slices()) * 4);
  tallies_ = out.add_temp(all * 8);
  scales_ = out.add_temp(all * 4);
  worst_ = out.add_temp(8);
  for (u32 p = 0; p < form_.parts; ++p) {
    parts_.push_back(out.add_temp(all * static_cast<u64>(depth_) * 2));
  }
}

void OperandSplit::lower_maxima(Launches& out) {
  add(out, "maxima", {maxima_, tallies_, worst_}, {}, groups(),
      [&](const auto& params) { trace_maxima(params[0], params[1], params[2]); });
}

void OperandSplit::lower_parts(Launches& out) {
  std::vector<u32> written = {tallies_, scales_};
  written.insert(written.end(), parts_.begin(), parts_.end());
  add(out, "parts", written, {maxima_}, groups(), [&](const auto& params) {
    trace_parts(params.back(), params[0], params[1], std::span(params).subspan(2, form_.parts));
  });
}

void OperandSplit::lower_verdict(Launches& out) {
  Launch launch;
  launch.label = "split verdict";
  launch.choice = "whether the operands' exponents allow 16-bit parts, else f32 runs";
  launch.args = {ArgRef::temporary(worst_, true), ArgRef::temporary(tallies_)};
  const u32 all = static_cast<u32>(batches_ * lines_);
  launch.groups = (all + width_ - 1) / width_;
  launch.kernel = kernel::trace("split_verdict", c_.in().target, width_, [&] {
    const Buffer worst = kernel::param_buffer(kernel::Scalar::U32);
    const Buffer tallies = kernel::param_buffer(kernel::Scalar::U32);
    const U32 line = U32(kernel::min(kernel::group() * U32(width_) + kernel::lane(), U32(all - 1)));
    const Value tally = tallies.load(line * U32(2), 2);
    const std::vector<Value> both = kernel::group_reduce(
        std::vector<Value>{kernel::extract(tally, 0), ~U32(kernel::extract(tally, 1))},
        [](std::span<const Value> a, std::span<const Value> b) {
          return std::vector<Value>{kernel::max(a[0], b[0]), kernel::max(a[1], b[1])};
        });
    kernel::If(kernel::lane() == U32(0), [&] {
      worst.atomic(kernel::AtomicOp::Max, U32(0), both[0]);
      worst.atomic(kernel::AtomicOp::Max, U32(1), both[1]);
    });
  });
  out.list.push_back(std::move(launch));
}

void OperandSplit::find_place() {
  const Value g = c_.as_index(kernel::group());
  slice_at_ = g % c_.index(slices());
  const Value rest = g / c_.index(slices());
  block_ = rest % c_.index(blocks());
  batch_ = rest / c_.index(blocks());
  const Value line = block_ * c_.index(kLines), base = batch_ * c_.index(c_.batch_rows());
  at_ = operand_ == 0 ? Grid::Place{c_.index(0), batch_, base, line, c_.index(0)}
                      : Grid::Place{c_.index(0), batch_, base, c_.index(0), line};
}

Value OperandSplit::line_number(const Value& line) const {
  return (batch_ * c_.index(blocks()) + block_) * c_.index(kLines) + c_.as_index(line);
}

U32 OperandSplit::own_line(u32 i) const {
  return source_.along_depth() ? source_.spot(i).across : source_.spot(0).across + U32(i);
}

void OperandSplit::trace_maxima(const Buffer& maxima, const Buffer& tallies, const Buffer& worst) {
  const Shared most(kernel::Scalar::U32, kLines);
  each_line([&](const U32& line) { most[line] = U32(0); });
  kernel::barrier();
  std::vector<VarValue> own_most;
  for (u32 i = 0; i < own_lines(); ++i) own_most.emplace_back(U32(0));
  each_tile([&](const Value&, const auto& packs) {
    for (u32 u = 0; u < packs.size(); ++u) {
      for (u32 i = 0; i < 4; ++i) {
        VarValue& best = own_most[own(u, i)];
        best.set(kernel::max(best.get(), magnitude_bits(packs[u][i])));
      }
    }
  });
  for (u32 i = 0; i < own_lines(); ++i) {
    most.atomic(kernel::AtomicOp::Max, own_line(i), own_most[i].get());
  }
  kernel::barrier();
  each_line([&](const U32& line) {
    maxima[slice_at_ * c_.index(batches_ * lines_) + line_number(line)] = most.load(line);
    kernel::If(kernel::Bool(slice_at_ == c_.index(0)), [&] {
      tallies[line_number(line) * c_.index(2)] = U32(0);
      tallies[line_number(line) * c_.index(2) + c_.index(1)] = U32(0);
    });
  });
  kernel::If(kernel::Bool(kernel::group() == U32(0)), [&] {
    kernel::If(kernel::lane() == U32(0), [&] {
      worst[0] = U32(0);
      worst[1] = U32(0);
    });
  });
}

void OperandSplit::trace_parts(const Buffer& maxima, const Buffer& tallies, const Buffer& scales,
                               std::span<const Buffer> parts) {
  const Shared most(kernel::Scalar::U32, kLines), small(kernel::Scalar::U32, kLines),
      sums(kernel::Scalar::U32, kLines);
  each_line([&](const U32& line) {
    for (const Shared* s : {&most, &small, &sums}) (*s)[line] = U32(0);
  });
  kernel::barrier();
  kernel::For(kernel::lane(), U32(kLines * static_cast<u32>(slices())), U32(width_), [&](U32 i) {
    const U32 line = i % U32(kLines);
    const Value slice = c_.as_index(i / U32(kLines));
    most.atomic(kernel::AtomicOp::Max, line,
                maxima[slice * c_.index(batches_ * lines_) + line_number(line)].load());
  });
  kernel::barrier();
  std::vector<F32> scale;
  std::vector<VarValue> own_small, own_sum;
  for (u32 i = 0; i < own_lines(); ++i) {
    scale.push_back(kernel::bitcast<F32>(scale_field(U32(most.load(own_line(i)))) << U32(23)));
    own_small.emplace_back(U32(0));
    own_sum.emplace_back(F32(0.0f));
  }
  const u32 arrays = (form_.parts + 1) / 2;
  std::vector<Shared> turned;
  if (source_.along_depth()) {
    for (u32 a = 0; a < arrays; ++a)
      turned.emplace_back(kernel::Scalar::U32, kPassDepth * (kLines + 1));
  }
  each_tile([&](const Value& k, const auto& packs) {
    for (u32 u = 0; u < packs.size(); ++u) {
      std::vector<std::vector<U32>> split;
      for (u32 i = 0; i < 4; ++i) {
        const u32 mine = own(u, i);
        const F32 x = F32(packs[u][i]) * scale[mine];
        own_small[mine].set(own_small[mine].get() + is_small(x, form_));
        own_sum[mine].set(own_sum[mine].get() + kernel::abs(x));
        split.emplace_back();
        for (const F32& part : parts_of(x, form_)) {
          split.back().push_back(form_.elem == kernel::Scalar::F16 ? half_bits(part)
                                                                   : bfloat_bits(part));
        }
      }
      const auto [across, depth] = source_.spot(u);
      if (source_.along_depth()) {
        for (u32 i = 0; i < 4; ++i) {
          const U32 at = (depth + U32(i)) * U32(kLines + 1) + across;
          turned[0][at] = split[i][0] | (split[i][1] << U32(16));
          if (form_.parts > 2) turned[1][at] = split[i][2];
        }
      } else {
        store(parts, k + c_.as_index(depth), across, split);
      }
    }
    if (!source_.along_depth()) return;
    kernel::barrier();
    for (u32 u = 0; u < source_.units(); ++u) {
      const U32 id = kernel::lane() + U32(u * width_);
      const U32 across = id % U32(kLines / 4) * U32(4), depth = id / U32(kLines / 4);
      std::vector<std::vector<U32>> split;
      for (u32 i = 0; i < 4; ++i) {
        const U32 at = depth * U32(kLines + 1) + across + U32(i);
        const U32 word(turned[0].load(at));
        split.push_back({word & U32(0xffff), word >> U32(16)});
        if (form_.parts > 2) split.back().push_back(U32(turned[1].load(at)));
      }
      store(parts, k + c_.as_index(depth), across, split);
    }
    kernel::barrier();
  });
  for (u32 i = 0; i < own_lines(); ++i) {
    small.atomic(kernel::AtomicOp::Add, own_line(i), own_small[i].get());
    // Infinite and undefined sums saturate; their lines are refused below.
    sums.atomic(kernel::AtomicOp::Add, own_line(i),
                kernel::cast(own_sum[i].get() * F32(kSumUnit), kernel::Scalar::U32));
  }
  kernel::barrier();
  each_line([&](const U32& line) {
    const U32 m(most.load(line));
    U32 n(small.load(line)), sum(sums.load(line));
    const kernel::Bool once(slice_at_ == c_.index(0));
    kernel::If(once, [&] { scales[line_number(line)] = scale_field(m); });
    const U32 extra_n = kernel::select(m >= U32(0x7f80'0000), U32(kNever), U32(0));
    const U32 extra_sum = kernel::select(m == U32(0), U32(kAlways), U32(0));
    n = n + kernel::select(once, extra_n, U32(0));
    sum = sum + kernel::select(once, extra_sum, U32(0));
    tallies.atomic(kernel::AtomicOp::Add, line_number(line) * c_.index(2), n);
    tallies.atomic(kernel::AtomicOp::Add, line_number(line) * c_.index(2) + c_.index(1), sum);
  });
}

void OperandSplit::store(std::span<const Buffer> parts, const Value& k, const U32& across,
                         const std::vector<std::vector<U32>>& split) {
  const Value at = ((batch_ * c_.index(depth_) + k) * c_.index(lines_) + block_ * c_.index(kLines) +
                    c_.as_index(across)) /
                   c_.index(2);
  for (u32 p = 0; p < form_.parts; ++p) {
    parts[p].store(at, kernel::vec({split[0][p] | (split[1][p] << U32(16)),
                                    split[2][p] | (split[3][p] << U32(16))}));
  }
}

}  // namespace oa::graph
