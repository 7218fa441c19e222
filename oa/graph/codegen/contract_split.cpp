#include "oa/graph/codegen/contract_split.h"

#include <string>

#include "oa/graph/codegen/contract_tiles.h"

namespace oa::graph {
namespace {

using kernel::Buffer;
using kernel::F32;
using kernel::Layout;
using kernel::Scalar;
using kernel::Shared;
using kernel::U32;
using kernel::Value;
using kernel::VarValue;

constexpr u32 kSide = kFragmentSide;
constexpr u32 kLines = 64;         // rows of A or columns of B per workgroup of a pass
constexpr u32 kPassDepth = 32;     // of k at a time in a pass
constexpr i64 kSlicesAtMost = 32;  // of k, in the passes
constexpr u32 kChunk = 64;         // of k, summed in the matrix units
// Largest scaled element: [2^14, 2^15), so that 2^15 is still a half.
constexpr u32 kLargest = 14;
// Counts of small elements of lines with infinities or NaN, and sums of lines of zeros: always
// false, always true.
constexpr u32 kNever = 0x4000'0000;
constexpr u32 kAlways = 0x8000'0000;
constexpr f32 kSumUnit = 0x1p-7f;  // sums are kept as integers, whose order does not matter

struct SplitForm {
  Scalar elem;
  u32 parts;
  f32 smallest;  // scaled elements below lose bits
};

SplitForm form_of(Precision p) {
  if (p == Precision::F32x3) return {Scalar::F16, 2, 0x1p-2f};
  return {Scalar::BF16, 3, 0x1p-100f};
}

U32 bits_of(const Value& x) { return kernel::bitcast<U32>(x); }
U32 magnitude(const Value& x) { return bits_of(x) & U32(0x7fff'ffff); }

// The high bits of x, rounded to nearest even; the rest is exact. `power` is 2^(dropped bits) + 1.
F32 high_part(const F32& x, f32 power) {
  const F32 wide = x * F32(power);
  return wide - (wide - x);
}

// The bits of a half, rounded to nearest even.
U32 half_bits(const F32& x) {
  const U32 a = magnitude(x);
  const U32 normal = (a - U32(0x3800'0000u - 0xfff) + ((a >> U32(13)) & U32(1))) >> U32(13);
  const U32 subnormal = bits_of(kernel::abs(x) + F32(0.5f)) - U32(0x3f00'0000);
  return kernel::select(a < U32(0x3880'0000), subnormal, normal) |
         ((bits_of(x) >> U32(16)) & U32(0x8000));
}

U32 bfloat_bits(const F32& x) {
  const U32 b = bits_of(x);
  return (b + U32(0x7fff) + ((b >> U32(16)) & U32(1))) >> U32(16);
}

// The parts of a scaled element, largest first, in their own bits.
std::vector<U32> parts_of(const F32& x, const SplitForm& form) {
  if (form.elem == Scalar::F16) {
    const F32 high = high_part(x, 0x1p13f + 1);
    return {half_bits(high), half_bits(x - high)};
  }
  const F32 high = high_part(x, 0x1p16f + 1), rest = x - high;
  const F32 middle = high_part(rest, 0x1p16f + 1);
  return {bfloat_bits(high), bfloat_bits(middle), bfloat_bits(rest - middle)};
}

// One operand's passes, and what they leave.
class OperandSplit {
 public:
  OperandSplit(ContractNest& c, const SplitForm& form, u32 operand, i64 batches, i64 lines,
               i64 depth)
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

  void add_temps(Launches& out) {
    const u64 all = static_cast<u64>(batches_ * lines_);
    maxima_ = out.add_temp(all * static_cast<u64>(slices()) * 4);
    tallies_ = out.add_temp(all * 8);
    scales_ = out.add_temp(all * 4);
    worst_ = out.add_temp(8);
    for (u32 p = 0; p < form_.parts; ++p) {
      parts_.push_back(out.add_temp(all * static_cast<u64>(depth_) * 2));
    }
  }

  void lower_maxima(Launches& out) {
    add(out, "maxima", {maxima_, tallies_, worst_}, {}, groups(),
        [&](const auto& params) { trace_maxima(params[0], params[1], params[2]); });
  }

  void lower_parts(Launches& out) {
    std::vector<u32> written = {tallies_, scales_};
    written.insert(written.end(), parts_.begin(), parts_.end());
    add(out, "parts", written, {maxima_}, groups(), [&](const auto& params) {
      trace_parts(params.back(), params[0], params[1], std::span(params).subspan(2, form_.parts));
    });
  }

  void lower_verdict(Launches& out) {
    Launch launch;
    launch.label = "split verdict";
    launch.args = {ArgRef::temporary(worst_, true), ArgRef::temporary(tallies_)};
    const u32 all = static_cast<u32>(batches_ * lines_);
    launch.groups = (all + width_ - 1) / width_;
    launch.kernel = kernel::trace("split_verdict", c_.in().target, width_, [&] {
      const Buffer worst = kernel::param_buffer(Scalar::U32);
      const Buffer tallies = kernel::param_buffer(Scalar::U32);
      const U32 line =
          U32(kernel::min(kernel::group() * U32(width_) + kernel::lane(), U32(all - 1)));
      const Value tally = tallies.load(line * U32(2), 2);
      const std::vector<Value> both = kernel::group_reduce(
          std::vector<Value>{kernel::extract(tally, 0), kernel::extract(tally, 1)},
          [](std::span<const Value> a, std::span<const Value> b) {
            return std::vector<Value>{kernel::max(a[0], b[0]), kernel::min(a[1], b[1])};
          });
      kernel::If(kernel::lane() == U32(0), [&] {
        worst.atomic(kernel::AtomicOp::Max, U32(0), both[0]);
        worst.atomic(kernel::AtomicOp::Min, U32(1), both[1]);
      });
    });
    out.list.push_back(std::move(launch));
  }

  i64 lines() const { return lines_; }  // padded, of one batch
  u32 worst() const { return worst_; }
  void add_args(Launch& launch) const {
    for (u32 p : parts_) launch.args.push_back(ArgRef::temporary(p));
    launch.args.push_back(ArgRef::temporary(scales_));
  }

 private:
  i64 blocks() const { return lines_ / kLines; }
  i64 slices() const { return ceil_div(depth_, slice_); }
  i64 groups() const { return batches_ * blocks() * slices(); }

  // A launch that reads the operand, with these temporaries as parameters after the operand's.
  template <class Body>
  void add(Launches& out, const char* name, const std::vector<u32>& written,
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
        params.push_back(kernel::param_buffer(Scalar::U32));
      }
      find_place();
      body(params);
    });
    out.list.push_back(std::move(launch));
  }

  void find_place() {
    const Value g = c_.as_index(kernel::group());
    slice_at_ = g % c_.index(slices());
    const Value rest = g / c_.index(slices());
    block_ = rest % c_.index(blocks());
    batch_ = rest / c_.index(blocks());
    const Value line = block_ * c_.index(kLines), base = batch_ * c_.index(c_.batch_rows());
    at_ = operand_ == 0 ? Grid::Place{c_.index(0), batch_, base, line, c_.index(0)}
                        : Grid::Place{c_.index(0), batch_, base, c_.index(0), line};
  }

  // Number of a line of this workgroup among all, as they lie in the temporaries.
  Value line_number(const Value& line) const {
    return (batch_ * c_.index(blocks()) + block_) * c_.index(kLines) + c_.as_index(line);
  }

  // A lane meets few lines: one per unit, or four neighbours.
  u32 own_lines() const { return source_.along_depth() ? source_.units() : 4; }
  u32 own(u32 unit, u32 element) const { return source_.along_depth() ? unit : element; }
  U32 own_line(u32 i) const {
    return source_.along_depth() ? source_.spot(i).across : source_.spot(0).across + U32(i);
  }

  template <class Body>
  void each_tile(const Body& body) {
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

  void trace_maxima(const Buffer& maxima, const Buffer& tallies, const Buffer& worst) {
    const Shared most(Scalar::U32, kLines);
    each_line([&](const U32& line) { most[line] = U32(0); });
    kernel::barrier();
    std::vector<VarValue> own_most;
    for (u32 i = 0; i < own_lines(); ++i) own_most.emplace_back(U32(0));
    each_tile([&](const Value&, const auto& packs) {
      for (u32 u = 0; u < packs.size(); ++u) {
        for (u32 i = 0; i < 4; ++i) {
          VarValue& best = own_most[own(u, i)];
          best.set(kernel::max(best.get(), magnitude(packs[u][i])));
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
        worst[1] = U32(~0u);
      });
    });
  }

  void trace_parts(const Buffer& maxima, const Buffer& tallies, const Buffer& scales,
                   std::span<const Buffer> parts) {
    const Shared most(Scalar::U32, kLines), small(Scalar::U32, kLines), sums(Scalar::U32, kLines);
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
      for (u32 a = 0; a < arrays; ++a) turned.emplace_back(Scalar::U32, kPassDepth * (kLines + 1));
    }
    each_tile([&](const Value& k, const auto& packs) {
      for (u32 u = 0; u < packs.size(); ++u) {
        std::vector<std::vector<U32>> split;
        for (u32 i = 0; i < 4; ++i) {
          const u32 mine = own(u, i);
          const F32 x = F32(packs[u][i]) * scale[mine];
          const U32 a = magnitude(x);
          // One comparison for: not zero, and below the smallest.
          const U32 limit = bits_of(F32(form_.smallest)) - U32(1);
          own_small[mine].set(own_small[mine].get() +
                              kernel::select(a - U32(1) < limit, U32(1), U32(0)));
          own_sum[mine].set(own_sum[mine].get() + kernel::abs(x));
          split.push_back(parts_of(x, form_));
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
                  kernel::cast(own_sum[i].get() * F32(kSumUnit), Scalar::U32));
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

  // Exponent field of the power of two that takes a line's largest element to [2^14, 2^15). It and
  // its inverse are normal numbers.
  static U32 scale_field(const U32& largest) {
    const U32 exponent = largest >> U32(23);
    return U32(
        kernel::min(U32(2 * 127 + kLargest) - U32(kernel::min(exponent, U32(254))), U32(253)));
  }

  template <class Body>
  void each_line(const Body& body) {
    kernel::For(kernel::lane(), U32(kLines), U32(width_), body);
  }

  // Four lines from `across` on at one k.
  void store(std::span<const Buffer> parts, const Value& k, const U32& across,
             const std::vector<std::vector<U32>>& split) {
    const Value at = ((batch_ * c_.index(depth_) + k) * c_.index(lines_) +
                      block_ * c_.index(kLines) + c_.as_index(across)) /
                     c_.index(2);
    for (u32 p = 0; p < form_.parts; ++p) {
      parts[p].store(at, kernel::vec({split[0][p] | (split[1][p] << U32(16)),
                                      split[2][p] | (split[3][p] << U32(16))}));
    }
  }

  ContractNest& c_;
  SplitForm form_;
  u32 operand_;
  i64 batches_, lines_, depth_, slice_ = 0;
  u32 width_;
  TileSource source_;
  u32 maxima_ = 0, tallies_ = 0, scales_ = 0, worst_ = 0;
  std::vector<u32> parts_;
  Value slice_at_, block_, batch_;
  Grid::Place at_;
};

// --- The product of the parts --------------------------------------------------------------------

class SplitContract {
 public:
  SplitContract(ContractNest& c, const SplitForm& form, const FragmentTile& tile, i64 depth,
                const DepthSlices& slices, const OperandSplit& a, const OperandSplit& b,
                SplitVerdict verdict)
      : c_(c),
        form_(form),
        tile_(tile),
        depth_(depth),
        slices_(slices),
        results_(c, slices),
        a_(a),
        b_(b),
        verdict_(verdict),
        threads_(tile.group_rows * tile.group_columns * c.in().target.subgroup),
        grid_(c, tile.tile_rows(), tile.tile_columns(), slices.count) {}

  Launch launch() {
    Launch launch = results_.make_launch();
    a_.add_args(launch);
    b_.add_args(launch);
    verdict_.add_args(launch);
    launch.label += form_.parts == 2 ? " in 3 parts" : " in 6 parts";
    launch.groups = group_count(c_.in(), grid_.groups());
    launch.kernel = kernel::trace("contract_split", c_.in().target, threads_, [&] {
      results_.declare();
      for (Side* side : {&rows_, &columns_}) {
        for (u32 p = 0; p < form_.parts; ++p)
          side->parts.push_back(kernel::param_buffer(Scalar::U32));
        side->scales.emplace(kernel::param_buffer(Scalar::U32));
      }
      kernel::If(verdict_.holds(), [&] { run(); });
    });
    return launch;
  }

 private:
  // What belongs to one operand: its parts in memory, and where this lane's packs lie.
  struct Side {
    std::vector<Buffer> parts;
    std::optional<Buffer> scales;
    u32 across = 0;                // of the tile
    i64 lines = 0;                 // in memory, per k
    std::vector<Value> first;      // words, per pack
    std::vector<U32> spot;         // words in a tile of workgroup memory, per pack
    std::vector<Shared> tiles[2];  // per part
  };
  using Fragments = std::vector<std::vector<Value>>;  // [part][fragment]

  static u32 pitch(const Side& s) { return s.across + 8; }

  void prepare(Side& s, u32 across, i64 lines, const Value& line) {
    s.across = across;
    s.lines = lines;
    for (auto& set : s.tiles) {
      for (u32 p = 0; p < form_.parts; ++p) set.emplace_back(Scalar::U32, kSide * pitch(s) / 2);
    }
    const u32 packs = kSide * across / 8 / threads_;
    for (u32 u = 0; u < packs; ++u) {
      const U32 id = kernel::lane() + U32(u * threads_);
      const U32 k = id / U32(across / 8), x = id % U32(across / 8) * U32(8);
      s.spot.push_back((k * U32(pitch(s)) + x) / U32(2));
      const Value from = at_.batch * c_.index(depth_) +
                         at_.slice * c_.index(depth_ / slices_.count) + c_.as_index(k);
      s.first.push_back((from * c_.index(lines) + line + c_.as_index(x)) / c_.index(2));
    }
  }

  void run() {
    at_ = grid_.place(c_);
    const U32 subgroup = kernel::lane() / U32(kernel::subgroup_width());
    row_ = subgroup / U32(tile_.group_columns) * U32(tile_.rows * kSide);
    column_ = subgroup % U32(tile_.group_columns) * U32(tile_.columns * kSide);
    prepare(rows_, tile_.tile_rows(), a_.lines(), at_.row);
    prepare(columns_, tile_.tile_columns(), b_.lines(), at_.column);
    const kernel::Type sum_type =
        kernel::fragment_type(kernel::FragUse::C, Scalar::F32, kSide, kSide);
    const Value zero = kernel::frag_fill(sum_type, kernel::constant(Scalar::F32, 0));
    for (u32 i = 0; i < tile_.rows * tile_.columns; ++i) {
      chunk_.emplace_back(zero);
      sums_.emplace_back(zero);
    }
    steps_ = depth_ / slices_.count / kSide;  // even
    for (u32 i = 0; i < 2; ++i) {
      for (const Value& v : load_tile(c_.index(i))) ahead_[i].emplace_back(v);
    }
    store_tile(0, ahead_[0]);
    set_all(ahead_[0], load_tile(c_.index(2)));
    kernel::barrier();
    // Two parts fit into the registers twice: the fragments of the next step are loaded while those
    // of this one multiply. Three are loaded one by one.
    const bool early = form_.parts == 2;
    if (early) {
      for (const Value& v : flat(load_fragments(0))) current_.emplace_back(v);
    }
    const i64 pairs = steps_ / 2, per_chunk = kChunk / (2 * kSide);
    const auto add_chunk = [&] {
      for (size_t i = 0; i < sums_.size(); ++i) {
        sums_[i].set(kernel::frag_add(sums_[i].get(), chunk_[i].get()));
        chunk_[i].set(zero);
      }
    };
    kernel::For(
        c_.index(0), c_.index(pairs), c_.index(1),
        [&](const Value& pair) {
          std::vector<Value> sums;
          for (const VarValue& v : chunk_) sums.push_back(v.get());
          const Value t = pair * c_.index(2);
          for (u32 half = 0; half < 2; ++half) {
            early ? step_early(half, t + c_.index(half), sums)
                  : step_by_part(half, t + c_.index(half), sums);
          }
          for (size_t i = 0; i < sums.size(); ++i) chunk_[i].set(sums[i]);
          kernel::If(kernel::Bool(pair % c_.index(per_chunk) == c_.index(per_chunk - 1)),
                     add_chunk);
        },
        kernel::Unroll::Never);
    add_chunk();
    store();
  }

  void step_early(u32 half, const Value& t, std::vector<Value>& sums) {
    const Fragments now = taken(current_);
    store_tile(1 - half, ahead_[1 - half]);
    set_all(ahead_[1 - half], load_tile(t + c_.index(3)));
    kernel::barrier();
    set_all(current_, flat(load_fragments(1 - half)));
    multiply(now, sums);
  }

  void step_by_part(u32 half, const Value& t, std::vector<Value>& sums) {
    store_tile(1 - half, ahead_[1 - half]);
    set_all(ahead_[1 - half], load_tile(t + c_.index(3)));
    multiply_part_by_part(half, sums);
    kernel::barrier();
  }

  static void set_all(const std::vector<VarValue>& vars, const std::vector<Value>& values) {
    for (size_t i = 0; i < vars.size(); ++i) vars[i].set(values[i]);
  }
  static std::vector<Value> flat(const Fragments& f) {
    std::vector<Value> all;
    for (const auto& part : f) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  Fragments taken(const std::vector<VarValue>& vars) const {
    Fragments f(2 * form_.parts);
    size_t next = 0;
    for (u32 p = 0; p < 2 * form_.parts; ++p) {
      const u32 n = p < form_.parts ? tile_.rows : tile_.columns;
      for (u32 i = 0; i < n; ++i) f[p].push_back(vars[next++].get());
    }
    return f;
  }

  // Past the last step the last one is read again.
  std::vector<Value> load_tile(const Value& step) {
    const Value t = kernel::min(step, c_.index(steps_ - 1));
    std::vector<Value> values;
    for (const Side* s : {&rows_, &columns_}) {
      for (const Value& first : s->first) {
        const Value at = first + t * c_.index(kSide * s->lines / 2);
        for (const Buffer& part : s->parts) values.push_back(part.load_constant(at, 4));
      }
    }
    return values;
  }

  void store_tile(u32 half, const std::vector<VarValue>& values) {
    size_t next = 0;
    for (const Side* s : {&rows_, &columns_}) {
      for (const U32& spot : s->spot) {
        for (const Shared& part : s->tiles[half]) part[spot] = values[next++].get();
      }
    }
  }

  std::vector<Value> load_part(u32 half, u32 operand, u32 part) {
    const Side& s = operand == 0 ? rows_ : columns_;
    const kernel::Type type = kernel::fragment_type(
        operand == 0 ? kernel::FragUse::A : kernel::FragUse::B, form_.elem, kSide, kSide);
    std::vector<Value> list;
    for (u32 i = 0; i < (operand == 0 ? tile_.rows : tile_.columns); ++i) {
      list.push_back(kernel::frag_load(
          type, s.tiles[half][part], (operand == 0 ? *row_ : *column_) + U32(i * kSide),
          U32(pitch(s)), operand == 0 ? Layout::ColMajor : Layout::RowMajor));
    }
    return list;
  }

  Fragments load_fragments(u32 half) {
    Fragments f;
    for (u32 operand = 0; operand < 2; ++operand) {
      for (u32 p = 0; p < form_.parts; ++p) f.push_back(load_part(half, operand, p));
    }
    return f;
  }

  void multiply_parts(const std::vector<Value>& a, const std::vector<Value>& b,
                      std::vector<Value>& sums) {
    for (u32 i = 0; i < tile_.rows; ++i) {
      for (u32 j = 0; j < tile_.columns; ++j) {
        Value& sum = sums[i * tile_.columns + j];
        sum = kernel::frag_mul_add(a[i], b[j], sum);
      }
    }
  }

  // Pairs of parts that count, those of the smallest products first.
  std::vector<std::pair<u32, u32>> order() const {
    if (form_.parts == 2) return {{1, 0}, {0, 1}, {0, 0}};
    return {{2, 0}, {1, 1}, {0, 2}, {1, 0}, {0, 1}, {0, 0}};
  }

  void multiply(const Fragments& f, std::vector<Value>& sums) {
    for (const auto& [p, q] : order()) multiply_parts(f[p], f[form_.parts + q], sums);
  }

  void multiply_part_by_part(u32 half, std::vector<Value>& sums) {
    std::vector<std::vector<Value>> a(form_.parts), b(form_.parts);
    for (const auto& [p, q] : order()) {
      if (a[p].empty()) a[p] = load_part(half, 0, p);
      if (b[q].empty()) b[q] = load_part(half, 1, q);
      multiply_parts(a[p], b[q], sums);
    }
  }

  // Fragment by fragment through workgroup memory, where each lane finds its elements.
  void store() {
    const bool whole =
        grid_.rows % tile_.tile_rows() == 0 && c_.columns() % tile_.tile_columns() == 0;
    store_staged(results_, at_, tile_, whole, grid_.rows, c_, *row_, *column_, sums_,
                 [&](const Value& x, const Value& row, const Value& column) {
                   return unscaled(F32(x), row, column);
                 });
  }

  // Two factors, since one alone might be too large or too small for f32.
  Value unscaled(const F32& sum, const Value& row, const Value& column) {
    const auto field = [&](const Side& s, const Value& line) {
      return kernel::cast<kernel::I32>(U32(s.scales->load(at_.batch * c_.index(s.lines) + line)));
    };
    const kernel::I32 power = kernel::I32(2 * 127) - field(rows_, row) - field(columns_, column);
    const kernel::I32 half = power >> kernel::I32(1);
    const auto factor = [](const kernel::I32& e) {
      return kernel::bitcast<F32>((e + kernel::I32(127)) << kernel::I32(23));
    };
    return sum * factor(half) * factor(power - half);
  }

  ContractNest& c_;
  SplitForm form_;
  FragmentTile tile_;
  i64 depth_, steps_ = 0;
  DepthSlices slices_;
  Results results_;
  const OperandSplit& a_;
  const OperandSplit& b_;
  SplitVerdict verdict_;
  u32 threads_;
  Grid grid_;
  Grid::Place at_;
  Side rows_, columns_;
  std::optional<U32> row_, column_;  // of the subgroup in the tile
  std::vector<VarValue> chunk_, sums_;
  std::vector<VarValue> ahead_[2];  // packs on their way
  std::vector<VarValue> current_;   // fragments of this step, where they come early
};

// Whether the passes over the operands cost less than the matrix units save. A rule of the sizes
// alone, so that results have the same bits on every GPU that has the units.
bool pays(const ContractNest& c) {
  const f64 m = static_cast<f64>(c.batch_rows()), n = static_cast<f64>(c.columns());
  const f64 all = static_cast<f64>(c.rows()) * n * static_cast<f64>(c.depth());
  return m * n / (m + n) >= 160 && all >= 0x1p28;
}

}  // namespace

void SplitVerdict::add_args(Launch& launch) const {
  launch.args.push_back(ArgRef::temporary(a_));
  launch.args.push_back(ArgRef::temporary(b_));
}

// Let rows of A and columns of B be scaled so that their largest elements lie in [1/2, 1). An
// element of A below s = 2^-17 has an error of at most s 2^-23. If a row has n such elements and
// the column's elements have the sum W, the error that they make is at most n s 2^-23, while the
// sum of all |a b| is at least s (W - n): relative to it at most 2^-23 where n <= W / 2.
kernel::Bool SplitVerdict::holds() const {
  const Buffer a = kernel::param_buffer(kernel::Scalar::U32);
  const Buffer b = kernel::param_buffer(kernel::Scalar::U32);
  const auto fits = [](const Buffer& small, const Buffer& sum) {
    const F32 n = kernel::cast<F32>(small[0].load()), w = kernel::cast<F32>(sum[1].load());
    constexpr f32 kPerUnit = 2 * 0x1p15f * kSumUnit;
    return n * F32(kPerUnit) <= w;
  };
  return kernel::Bool(fits(a, b) & fits(b, a));
}

std::optional<SplitVerdict> lower_contract_split(ContractNest& c, const DepthSlices& slices,
                                                 Launches& out) {
  const kernel::Target& target = c.in().target;
  const Precision precision = c.precision();
  const bool split = precision == Precision::F32x3 || precision == Precision::F32x6;
  if (!split || c.operand_dtype(0) != DType::F32 || !target.fragments) return std::nullopt;
  // The low parts of halves are subnormal more often than not.
  if (precision == Precision::F32x3 && !target.fragments_subnormal) return std::nullopt;
  if (precision == Precision::F32x6 && !target.fragments_bf16) return std::nullopt;
  const bool gpu = target.threads >= kSoftwareGroups;
  if (gpu && !pays(c)) return std::nullopt;
  const SplitForm form = form_of(precision);
  const i64 batches = c.rows() / c.batch_rows();
  const i64 depth =
      slices.several() ? slices.count * slices.depth : ceil_div(c.depth(), kPassDepth) * kPassDepth;
  // Whole tiles of any candidate.
  const auto padded = [&](i64 lines) {
    const i64 whole = gpu ? 128 : kLines;
    return ceil_div(lines, whole) * whole;
  };
  OperandSplit a(c, form, 0, batches, padded(c.batch_rows()), depth);
  OperandSplit b(c, form, 1, batches, padded(c.columns()), depth);
  for (OperandSplit* o : {&a, &b}) o->add_temps(out);
  for (OperandSplit* o : {&a, &b}) o->lower_maxima(out);
  for (OperandSplit* o : {&a, &b}) o->lower_parts(out);
  for (OperandSplit* o : {&a, &b}) o->lower_verdict(out);
  const SplitVerdict verdict(a.worst(), b.worst());
  const auto make = [&](const FragmentTile& t) {
    return SplitContract(c, form, t, depth, slices, a, b, verdict).launch();
  };
  const auto choose = [&](std::initializer_list<FragmentTile> tiles) {
    return fastest_tile<FragmentTile>(
        c, "split", slices.count, tiles, [](const FragmentTile& t) { return t.tile_rows(); },
        [](const FragmentTile& t) { return t.tile_columns(); }, out.temps, make);
  };
  const FragmentTile small{2, 2, 2, 2};
  const FragmentTile tile = !gpu              ? small
                            : form.parts == 2 ? choose({{2, 4, 4, 2}, {2, 2, 4, 2}, small})
                                              : choose({{2, 2, 4, 2}, small});
  out.list.push_back(make(tile));
  return verdict;
}

}  // namespace oa::graph
