#include "oa/graph/codegen/contract_split.h"

#include <string>

#include "oa/graph/codegen/contract_matrix_split.h"

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
constexpr u32 kChunk = 64;  // of k, summed in the matrix units

// --- The product of the parts --------------------------------------------------------------------

class SplitContract {
 public:
  SplitContract(ContractNest& c, const SplitForm& form, const FragmentTile& tile, i64 depth,
                const DepthSlices& slices, const SplitParts& a, const SplitParts& b,
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
    launch.choice += fmt::format("; f32 from {} products of 16-bit parts on matrix units",
                                 form_.parts == 2 ? 3 : 6);
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
    prepare(rows_, tile_.tile_rows(), a_.lines, at_.row);
    prepare(columns_, tile_.tile_columns(), b_.lines, at_.column);
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
  SplitParts a_, b_;
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
  const auto fits = [](const U32& small, const U32& sum) {
    const F32 n = kernel::cast<F32>(small), w = kernel::cast<F32>(~sum);
    constexpr f32 kPerUnit = 2 * 0x1p15f * kSumUnit;
    return n * F32(kPerUnit) <= w;
  };
  const auto word = [](const Buffer& control, u32 i) { return U32(control[i].load()); };
  return kernel::Bool(fits(word(a, a_worst_), word(b, b_worst_ + 1)) &
                      fits(word(b, b_worst_), word(a, a_worst_ + 1)));
}

std::optional<SplitVerdict> lower_contract_split(ContractNest& c, const DepthSlices& slices,
                                                 Launches& out) {
  const kernel::Target& target = c.in().target;
  const Precision precision = c.precision();
  const bool split = precision == Precision::F32x3 || precision == Precision::F32x6;
  if (!split || c.operand_dtype(0) != DType::F32) return std::nullopt;
  OA_CHECK(target.fragments);  // the precision stage has asked for the units
  const bool gpu = target.threads >= kSoftwareGroups;
  if (gpu && !pays(c)) return std::nullopt;
  const SplitForm form = split_form(precision);
  const i64 batches = c.rows() / c.batch_rows();
  const i64 depth =
      slices.several() ? slices.count * slices.depth : ceil_div(c.depth(), kPartDepth) * kPartDepth;
  // Matrices in memory are split once for all products, other operands for this one.
  std::array<std::pair<MatrixSplit*, u32>, 2> shared;
  std::array<std::optional<OperandSplit>, 2> own;
  for (u32 i = 0; i < 2; ++i) {
    if (batches == 1) shared[i] = c.splits().find(c, form, i, depth, out);
    if (shared[i].first) continue;
    own[i].emplace(c, form, i, batches, MatrixSplit::padded(i == 0 ? c.batch_rows() : c.columns()),
                   depth);
    own[i]->add_temps(out);
  }
  for (u32 i = 0; i < 2; ++i) {
    own[i] ? own[i]->lower_maxima(out) : shared[i].first->lower_maxima(out);
  }
  for (u32 i = 0; i < 2; ++i) {
    own[i] ? own[i]->lower_parts(out) : shared[i].first->lower_parts(out);
  }
  for (u32 i = 0; i < 2; ++i) {
    own[i] ? own[i]->lower_verdict(out) : shared[i].first->lower_verdict(out);
  }
  const auto parts = [&](u32 i) {
    return own[i] ? own[i]->parts() : shared[i].first->parts(shared[i].second);
  };
  const SplitParts a = parts(0), b = parts(1);
  const SplitVerdict verdict(a, b);
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
