// Contractions with their epilogues: C[b.., m, n] = sum over k of A[b.., m, k] B[b.., k, n].
//
// Operands are read through index maps, so transposed, broadcast and sliced operands need no copy.
// Here is what all kernels share, and the general kernel: a gang of lanes along n computes a few
// rows of C.
#include "oa/graph/codegen/contract.h"

#include <algorithm>

#include "oa/graph/codegen/contract_matrix_split.h"
#include "oa/graph/lower.h"

namespace oa::graph {

using kernel::Buffer;
using kernel::Value;

namespace {

constexpr u32 kRow = 0, kColumn = 1, kDepth = 2, kBatch = 3;
constexpr u32 kPack = 4;         // results stored together
constexpr u32 kGeneralRows = 4;  // rows of C per workgroup of the general kernel

}  // namespace

ContractNest::ContractNest(const LowerInput& in, SplitPool& splits)
    : in_(in),
      splits_(splits),
      evaluator_(in.graph, [&](Operand o) { return in.is_stored(o) && !member(o); }) {
  product_ = *std::find_if(in.group.nodes.begin(), in.group.nodes.end(), [&](u32 n) {
    return in.graph.nodes[n].op->info.kind == OpKind::Contraction;
  });
  const Node& node = in.graph.nodes[product_];
  const Spec* specs[2] = {&in.graph.spec(node.inputs[0]), &in.graph.spec(node.inputs[1])};
  const Infer infer(node.op->name(), specs);
  spec_ = node.op->contract(infer, node.attr());
  spec_.precision = in.precision_of(product_);
  const Shape& a = specs[0]->shape;
  k_ = spec_.transpose_a ? a[a.rank() - 2] : a[a.rank() - 1];
  const DType out = node.outputs[0].spec.dtype;
  acc_ = is_float(out) && out != DType::F64 ? kernel::Scalar::F32 : value_scalar(out);
  // Domain: the axes of C, then k.
  Shape domain = in.group.domain;
  domain.push_back(std::max<i64>(k_, 1));
  std::vector<u32> roles(domain.rank(), kRow);
  roles[domain.rank() - 2] = kColumn;
  roles[domain.rank() - 1] = kDepth;
  for (u32 i = 0; in.target.is_cpu() && i + 3 < domain.rank(); ++i) {
    if (!repeats_b(i)) roles[i] = kBatch;
  }
  evaluator_.set_bound({{product_, 0}});
  nest_ = make_nest(evaluator_, in.target, domain, roles, [&](Point& p) {
    operand(0, p);
    operand(1, p);
    epilogue(p, kernel::constant(acc_, 1));
  });
  for (size_t i = 0; i < nest_.extent.size(); ++i) {
    const u32 role = nest_.loop_role[i];
    if (role == kColumn) {
      column_loops_.push_back(i);
      columns_ *= nest_.extent[i];
    } else if (role == kDepth) {
      depth_loops_.push_back(i);
    } else {
      row_loops_.push_back(i);
      rows_ *= nest_.extent[i];
      (role == kBatch ? batch_loops_ : shared_row_loops_).push_back(i);
      if (role == kBatch) batches_ *= nest_.extent[i];
    }
  }
  any_rows_ = batch_loops_.empty() && in.group.domain.rank() == 2;
  any_depth_ = in.group.domain.rank() == 2 && spec_.transpose_a && !spec_.transpose_b;
  // No index runs over the whole domain, which is far larger than any operand.
  i64 largest = std::max({rows_, columns_, k_});
  for (const AffineExpr& e : nest_.needs.expressions) {
    largest = std::max(largest, e.max(nest_.domain));
  }
  if (!in.target.is_cpu() && largest < (1ll << 31)) nest_.index_type = kernel::Scalar::U32;
}

// Whether operand B is the same along batch axis `axis` of the product.
bool ContractNest::repeats_b(u32 axis) const {
  const Shape& b = in_.graph.spec(in_.graph.nodes[product_].inputs[1]).shape;
  const u32 missing = in_.group.domain.rank() - b.rank();
  return axis < missing || b[axis - missing] == 1;
}

const std::vector<size_t>& ContractNest::loops(Axis axis) const {
  switch (axis) {
    case Axis::Batch: return batch_loops_;
    case Axis::Row: return shared_row_loops_;
    case Axis::Column: return column_loops_;
    case Axis::Depth: break;
  }
  return depth_loops_;
}

bool ContractNest::member(Operand o) const {
  return !o.is_leaf() && std::binary_search(in_.group.nodes.begin(), in_.group.nodes.end(), o.node);
}

AffineMap ContractNest::domain_map() const {
  Shape coarse = in_.group.domain;
  coarse.push_back(std::max<i64>(k_, 1));
  std::vector<u32> axes(evaluator_.domain().rank());
  for (u32 i = 0; i < axes.size(); ++i) axes[i] = i;
  return output_map(coarse, evaluator_.domain(), axes);
}

AffineMap ContractNest::operand_map(u32 i) const {
  const Shape& shape = in_.graph.spec(in_.graph.nodes[product_].inputs[i]).shape;
  const AffineMap all = domain_map();
  const u32 rank = in_.group.domain.rank();
  const AffineExpr &m = all.axes[rank - 2], &n = all.axes[rank - 1], &k = all.axes[rank];
  AffineMap map;
  const u32 batch = shape.rank() - 2;
  for (u32 b = 0; b < batch; ++b) {
    const bool repeats = shape[b] == 1;
    map.axes.push_back(repeats ? AffineMap::constant(0, evaluator_.domain().rank())
                               : all.axes[rank - 2 - batch + b]);
  }
  const bool swap = i == 0 ? spec_.transpose_a : spec_.transpose_b;
  const AffineExpr& first = i == 0 ? m : k;
  const AffineExpr& second = i == 0 ? k : n;
  map.axes.push_back(swap ? second : first);
  map.axes.push_back(swap ? first : second);
  return map;
}

std::optional<ContractNest::Direct> ContractNest::direct(u32 i) const {
  const Graph& graph = in_.graph;
  const u32 rank = evaluator_.domain().rank();
  const auto stored = [&](Operand o) { return in_.is_stored(o) && !member(o); };
  Operand o = graph.nodes[product_].inputs[i];
  AffineMap map = operand_map(i);
  while (!stored(o)) {
    const Node& node = graph.nodes[o.node];
    if (node.op->info.kind != OpKind::Movement) return std::nullopt;
    const Operand base = resolve_reshapes(graph, o);
    if (base != o && stored(base)) {
      return Direct{base, map.flatten(node.outputs[0].spec.shape, rank)};
    }
    const Operand from = node.inputs[0];
    const View view(map, node.outputs[0].spec.shape, graph.spec(from).shape, evaluator_.domain(),
                    from);
    map = node.op->view(view, node.attr());
    o = from;
  }
  return Direct{o, map.flatten(graph.spec(o).shape, rank)};
}

std::optional<ContractNest::MatrixView> ContractNest::matrix(u32 i) const {
  const auto d = direct(i);
  if (!d) return std::nullopt;
  const AffineExpr over = evaluator_.over_loops(d->position);
  // The elements from one number along these loops to the next, if that is always the same.
  const auto stride = [&](const std::vector<size_t>& of) -> std::optional<i64> {
    const i64 step = of.empty() ? 0 : over.coef[of.back()];
    i64 next = step;
    for (size_t l = of.size(); l-- > 0; next *= nest_.extent[of[l]]) {
      if (over.coef[of[l]] != next) return std::nullopt;
    }
    return step;
  };
  const auto line = stride(i == 0 ? row_loops_ : column_loops_), depth = stride(depth_loops_);
  const std::vector<size_t>& others = i == 0 ? column_loops_ : row_loops_;
  if (!line || !depth ||
      !std::ranges::all_of(others, [&](size_t l) { return over.coef[l] == 0; })) {
    return std::nullopt;
  }
  return MatrixView{d->memory, over.offset, *line, *depth};
}

kernel::Scalar ContractNest::element(const Direct& d) const {
  return element_scalar(in_.graph.spec(d.memory).dtype);
}

i64 ContractNest::step(const Direct& d, Axis axis) const {
  return evaluator_.over_loops(d.position).coef[loops(axis).back()];
}

bool ContractNest::is_pack(const Direct& d, Axis axis, u32 lanes) const {
  const AffineExpr over = evaluator_.over_loops(d.position);
  const size_t inner = loops(axis).back();
  // A tile advances along k by one stride.
  if (depth_loops_.size() != 1 || over.coef[inner] != 1) return false;
  bool aligned = over.offset % lanes == 0 && nest_.extent[inner] % lanes == 0;
  for (size_t l = 0; l < over.coef.size(); ++l) {
    if (l != inner) aligned = aligned && over.coef[l] % static_cast<i64>(lanes) == 0;
  }
  return aligned;
}

Value ContractNest::position(const Direct& d, const Point& p) {
  return evaluator_.affine(d.position, p);
}

Value ContractNest::load(const Direct& d, const Point& p, u32 lanes) {
  return memory(d).load(position(d, p), lanes);
}

i64 ContractNest::batch_rows() const {
  const u32 rank = in_.group.domain.rank();
  if (rank == 2) return rows_;
  if (const auto b = direct(1)) {
    const AffineExpr over = evaluator_.over_loops(b->position);
    if (std::ranges::all_of(row_loops_, [&](size_t l) { return over.coef[l] == 0; })) return rows_;
  }
  return in_.group.domain[rank - 2];
}

bool ContractNest::stores_product() const {
  return in_.group.nodes.size() == 1 && in_.group.outputs.size() == 1;
}

bool ContractNest::packs() const {
  u32 widest = 0;
  for (Operand o : in_.group.outputs) {
    widest = std::max(widest, size_bytes(in_.graph.spec(o).dtype));
  }
  for (Operand o : nest_.needs.buffers) {
    widest = std::max(widest, size_bytes(in_.graph.spec(o).dtype));
  }
  return widest <= 4 && nest_.extent[column_loops_.back()] % kPack == 0;
}

void ContractNest::store_pack(const Value& row, const Value& column,
                              std::span<const Value> products) {
  std::vector<std::pair<std::pair<Operand, AffineExpr>, Value>> shared;
  std::vector<std::vector<Value>> values(outputs_.size());
  Value first;
  for (u32 part = 0; part < kPack; ++part) {
    Point p = point(row, column, index(0));
    p.pack_axis = static_cast<u32>(column_loops_.back());
    if (part > 0) p.coords[p.pack_axis] = p.coords[p.pack_axis] + index(part);
    p.part = part;
    p.parts = kPack;
    p.shared = &shared;
    const std::vector<Value> v = epilogue(p, products[part]);
    if (part == 0) first = position_;
    for (size_t o = 0; o < v.size(); ++o) values[o].push_back(v[o]);
  }
  for (size_t o = 0; o < values.size(); ++o) outputs_[o].store(first, kernel::vec(values[o]));
}

Hash128 ContractNest::trial_key(std::string_view what, i64 slices) const {
  constexpr u32 kVersion = 1;  // raise it when the candidates change
  Hasher h;
  h.add(kVersion);
  h.text(what);
  h.text(group_label(in_.graph, in_.group));
  for (const i64 x : {rows_, batch_rows(), columns_, k_, slices}) h.add(x);
  h.add(static_cast<u8>(spec_.precision));
  for (u32 i = 0; i < 2; ++i) {
    h.add(static_cast<u8>(operand_dtype(i)));
    const auto d = direct(i);
    h.add(static_cast<u8>(d.has_value()));
    if (!d) continue;
    for (const i64 coefficient : evaluator_.over_loops(d->position).coef) h.add(coefficient);
  }
  for (Operand o : in_.group.outputs) h.add(static_cast<u8>(in_.graph.spec(o).dtype));
  h.add(in_.target.subgroup);
  h.add(in_.target.shared_bytes);
  return h.finish();
}

DType ContractNest::operand_dtype(u32 i) const {
  return in_.graph.spec(in_.graph.nodes[product_].inputs[i]).dtype;
}

Launch ContractNest::make_launch(bool outputs) const {
  Launch launch;
  launch.label = group_label(in_.graph, in_.group);
  launch.choice = extents();
  launch.flops = 2.0 * static_cast<f64>(rows_) * static_cast<f64>(columns_) * static_cast<f64>(k_);
  add_need_args(in_, nest_.needs, launch);
  for (Operand o : in_.group.outputs) {
    if (outputs) launch.args.push_back(ArgRef::value(o, true));
  }
  return launch;
}

std::string ContractNest::extents() const {
  return fmt::format("{} x {} results, {} terms each", rows_, columns_, k_);
}

void ContractNest::declare(bool outputs) {
  evaluator_.declare(nest_.needs, nest_.index_type);
  outputs_.clear();
  for (Operand o : in_.group.outputs) {
    if (!outputs) break;
    outputs_.push_back(kernel::param_buffer(element_scalar(in_.graph.spec(o).dtype)));
  }
}

void ContractNest::set(const std::vector<size_t>& loops, const Value& flat,
                       std::vector<Value>& coords) const {
  Value rest = flat;
  for (size_t k = loops.size(); k-- > 0;) {
    const i64 extent = nest_.extent[loops[k]];
    coords[loops[k]] = k == 0 ? rest : rest % index(extent);
    if (k > 0) rest = rest / index(extent);
  }
}

Point ContractNest::point(const Value& row, const Value& column, const Value& depth) const {
  Point p;
  p.coords.resize(nest_.extent.size());
  set(row_loops_, row, p.coords);
  set(column_loops_, column, p.coords);
  set(depth_loops_, depth, p.coords);
  return p;
}

Point ContractNest::gang(const Place& at, Axis lanes, bool whole) const {
  Point p;
  p.coords.resize(nest_.extent.size());
  for (const auto& [axis, flat] : {std::pair(Axis::Batch, &at.batch), std::pair(Axis::Row, &at.row),
                                   std::pair(Axis::Column, &at.column)}) {
    const Value lane = as_index(kernel::lane());
    if (axis != lanes) {
      set(loops(axis), *flat, p.coords);
    } else if (loops(axis).size() == 1 || (whole && is_straight(axis, kernel::width()))) {
      set(loops(axis), *flat, p.coords);
      Value& inner = p.coords[loops(axis).back()];
      inner = inner + lane;
    } else {
      set(loops(axis), *flat + lane, p.coords);
    }
  }
  for (size_t i = 0; i < depth_loops_.size(); ++i) p.coords[depth_loops_[i]] = at.depth[i];
  return p;
}

bool ContractNest::is_straight(Axis axis, u32 width) const {
  const std::vector<size_t>& l = loops(axis);
  return l.size() == 1 || nest_.extent[l.back()] % width == 0;
}

std::vector<Value> ContractNest::depth_at(const Value& number) const {
  std::vector<Value> coords(nest_.extent.size()), depth;
  set(depth_loops_, number, coords);
  for (size_t l : depth_loops_) depth.push_back(coords[l]);
  return depth;
}

void ContractNest::each_depth(const Value& begin, const Value& end, i64 stride,
                              const DepthBody& body) const {
  std::vector<Value> coords;
  const std::function<void(const Value&)> nest = [&](const Value& outer) {
    const size_t level = coords.size();
    const bool last = level + 1 == depth_loops_.size();
    const i64 extent = nest_.extent[depth_loops_[level]];
    kernel::For(level == 0 ? begin : index(0), level == 0 ? end : index(extent),
                index(last ? stride : 1), [&](const Value& i) {
                  const Value number = level == 0 ? i : outer * index(extent) + i;
                  coords.push_back(i);
                  last ? body(coords, number) : nest(number);
                  coords.pop_back();
                });
  };
  if (k_ > 0) nest(index(0));
}

Value ContractNest::operand(u32 i, Point& p) {
  return kernel::cast(evaluator_.value(in_.graph.nodes[product_].inputs[i], operand_map(i), p),
                      acc_);
}

std::vector<Value> ContractNest::epilogue(Point& p, const Value& product) {
  const AffineMap all = domain_map();
  const AffineMap c_map{{all.axes.begin(), all.axes.end() - 1}};
  const DType dtype = in_.graph.nodes[product_].outputs[0].spec.dtype;
  evaluator_.bind({product_, 0}, c_map, p, kernel::cast(product, value_scalar(dtype)));
  const AffineExpr flat = c_map.flatten(in_.group.domain, evaluator_.domain().rank());
  std::vector<Value> values;
  for (Operand o : in_.group.outputs) {
    const auto map = unflatten(flat, in_.graph.spec(o).shape, evaluator_.domain());
    if (!map) throw NotFusible{o};
    values.push_back(evaluator_.value(o, *map, p));
  }
  position_ = evaluator_.affine(flat, p);
  return values;
}

void ContractNest::store(Point& p, const Value& product) {
  const std::vector<Value> values = epilogue(p, product);
  for (size_t o = 0; o < values.size(); ++o) outputs_[o].store(position_, values[o]);
}

Value ContractNest::multiply_add(const Value& a, const Value& b, const Value& sum) const {
  return kernel::is_float(acc_) ? kernel::fma(a, b, sum) : a * b + sum;
}

// --- The general kernel -------------------------------------------------------------------------

namespace {

void lower_general(ContractNest& c, Launches& out) {
  const kernel::Target& target = c.in().target;
  const u32 width = target.is_cpu() ? target.width : std::min(64u, target.width);
  const i64 blocks = ceil_div(c.columns(), width);
  Launch launch = c.make_launch();
  launch.choice = fmt::format("{}; the general kernel, {} rows and {} columns a workgroup",
                              c.extents(), kGeneralRows, width);
  if (target.is_cpu()) launch.choice += ", which compiles soonest: the product is tiny";
  launch.groups = group_count(c.in(), ceil_div(c.rows(), kGeneralRows) * blocks);
  launch.kernel = kernel::trace("contract", target, width, [&] {
    c.declare();
    const Value group = c.as_index(kernel::group());
    const Value first = group / c.index(blocks) * c.index(kGeneralRows);
    const Value column = group % c.index(blocks) * c.index(width) + c.as_index(kernel::lane());
    const auto tile = [&] {
      std::vector<Value> rows;
      std::vector<kernel::VarValue> acc;
      for (u32 i = 0; i < kGeneralRows; ++i) {
        Value r = first + c.index(i);
        // A row past the end repeats the last one, and stores the same values there.
        if (c.rows() % kGeneralRows != 0) r = kernel::min(r, c.of_batches(c.rows() - 1));
        rows.push_back(r);
        acc.emplace_back(kernel::literal(c.accumulator(), 0));
      }
      kernel::For(c.index(0), c.of_depth(c.depth()), c.index(1), [&](const Value& k) {
        Point b_point = c.point(rows[0], column, k);
        const Value shared_b = c.operand(1, b_point);
        for (u32 i = 0; i < kGeneralRows; ++i) {
          Point p = c.point(rows[i], column, k);
          const Value a = c.operand(0, p);
          // B differs between rows only where rows run over batches too.
          const Value b = c.in().group.domain.rank() == 2 ? shared_b : c.operand(1, p);
          acc[i].set(c.multiply_add(a, b, acc[i].get()));
        }
      });
      for (u32 i = 0; i < kGeneralRows; ++i) {
        Point p = c.point(rows[i], column, c.index(0));
        c.store(p, acc[i].get());
      }
    };
    if (c.columns() % width == 0) {
      tile();
    } else {
      kernel::If(kernel::Bool(column < c.index(c.columns())), tile);
    }
  });
  out.list.push_back(std::move(launch));
}

}  // namespace

void lower_contract(const LowerInput& in, Launches& out) {
  SplitPool alone;
  lower_contract(in, alone, out);
}

void lower_contract(const LowerInput& in, SplitPool& splits, Launches& out) {
  ContractNest c(in, splits);
  if (in.target.is_cpu() ? lower_contract_cpu(c, out) : lower_contract_gpu(c, out)) return;
  lower_general(c, out);
}

}  // namespace oa::graph
