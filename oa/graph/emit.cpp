#include "oa/graph/emit.h"

#include <algorithm>

#include "oa/graph/lower.h"
#include "oa/graph/reshape.h"
#include "oa/kernel/differentiate.h"

namespace oa::graph {

using kernel::Buffer;
using kernel::Value;

kernel::Scalar element_scalar(DType t) {
  switch (t) {
    case DType::F32: return kernel::Scalar::F32;
    case DType::F64: return kernel::Scalar::F64;
    case DType::F16: return kernel::Scalar::F16;
    case DType::BF16: return kernel::Scalar::BF16;
    case DType::I32: return kernel::Scalar::I32;
    case DType::U32: return kernel::Scalar::U32;
    case DType::U8: return kernel::Scalar::U8;
    case DType::Bool: return kernel::Scalar::Bool;
  }
  return kernel::Scalar::F32;
}

namespace {

// A value of the element type, as it would come back from memory: U8 wraps at 256.
Value wrap(const Value& v, DType dtype) { return dtype == DType::U8 ? (v & 255) : v; }

Value scalar_param(kernel::Scalar type) {
  switch (type) {
    case kernel::Scalar::F64: return kernel::bitcast(kernel::param_u64(), type);
    case kernel::Scalar::I32: return kernel::bitcast(kernel::param_u32(), type);
    case kernel::Scalar::U32: return kernel::param_u32();
    default: OA_CHECK(type == kernel::Scalar::F32); return kernel::param_f32();
  }
}

}  // namespace

bool Needs::only_at(Operand operand, const AffineExpr& at) const {
  bool read = false;
  for (const auto& [from, position] : loads) {
    if (from != operand) continue;
    if (!position || *position != at) return false;
    read = true;
  }
  return read;
}

Evaluator::Evaluator(const Graph& graph, std::function<bool(Operand)> stored)
    : graph_(graph), stored_(std::move(stored)) {}

void Evaluator::set_domain(Shape domain) {
  domain_ = std::move(domain);
  inner_.clear();
  for (u32 i = 0; i < domain_.rank(); ++i) inner_.push_back(i);
}

AffineExpr Evaluator::over_loops(const AffineExpr& expr) const {
  AffineExpr result{expr.offset, {}};
  for (u32 axis : inner_) result.coef.push_back(axis < expr.coef.size() ? expr.coef[axis] : 0);
  return result;
}

void Evaluator::begin_dry_run() {
  dry_ = true;
  needs_ = {};
}

Needs Evaluator::end_dry_run() {
  dry_ = false;
  buffers_.clear();
  scalars_.clear();
  fixed_.clear();
  check_slots_.clear();
  return std::move(needs_);
}

void Evaluator::declare(const Needs& needs, kernel::Scalar index_type) {
  index_type_ = index_type;
  buffers_.clear();
  scalars_.clear();
  fixed_.clear();
  check_slots_.clear();
  for (Operand operand : needs.buffers) {
    buffers_.emplace_back(operand,
                          kernel::param_buffer(element_scalar(graph_.spec(operand).dtype)));
  }
  for (const auto& key : needs.scalars) {
    scalars_[key] = scalar_param(key.second);
  }
  if (!needs.checks.empty()) {
    status_ = kernel::param_buffer(kernel::Scalar::U32);
    check_base_ = kernel::param_u32();
    for (u32 i = 0; i < needs.checks.size(); ++i) check_slots_[needs.checks[i]] = i;
  }
  for (const auto& [operand, at] : needs.fixed) {
    fixed_.push_back({{operand, at}, buffer(operand).load(kernel::constant_int(index_type_, at))});
  }
}

const Buffer& Evaluator::buffer(Operand operand) {
  for (const auto& [known, b] : buffers_) {
    if (known == operand) return b;
  }
  OA_CHECK(dry_);
  needs_.buffers.push_back(operand);
  buffers_.emplace_back(operand, kernel::param_buffer(element_scalar(graph_.spec(operand).dtype)));
  return buffers_.back().second;
}

Value Evaluator::scalar(u32 index, kernel::Scalar type) {
  const std::pair key(index, type);
  if (auto it = scalars_.find(key); it != scalars_.end()) return it->second;
  OA_CHECK(dry_);
  needs_.scalars.push_back(key);
  return scalars_[key] = kernel::literal(type, 1);
}

Value Evaluator::affine(const AffineExpr& over_domain, const Point& point) {
  if (dry_) needs_.expressions.push_back(over_domain);
  const AffineExpr expr = over_loops(over_domain);
  // The constant goes in with the loop-invariant terms, the innermost axis comes last.
  Value sum;
  if (expr.offset != 0) sum = kernel::constant_int(index_type_, expr.offset);
  for (size_t d = 0; d < expr.coef.size(); ++d) {
    if (expr.coef[d] == 0) continue;
    Value term = point.coords[d];
    if (expr.coef[d] != 1) term = term * kernel::constant_int(index_type_, expr.coef[d]);
    sum = sum.valid() ? sum + term : term;
  }
  return sum.valid() ? sum : kernel::constant_int(index_type_, 0);
}

Value Evaluator::find(const Point& point, Operand operand, const AffineMap& map, u32 valid) const {
  for (const Point* p = &point; p; p = p->outer) {
    for (const auto& known : p->known) {
      if (known.operand == operand && (known.valid == valid || known.valid == kernel::kNoValue) &&
          known.map == map) {
        return known.value;
      }
    }
  }
  return {};
}

void Evaluator::bind(Operand operand, const AffineMap& map, Point& point, Value value) {
  point.known.push_back({operand, map, kernel::kNoValue, std::move(value)});
}

Value Evaluator::value(Operand operand, const AffineMap& map, Point& point) {
  return evaluate(operand, map, point, {});
}

Value Evaluator::evaluate(Operand operand, const AffineMap& map, Point& point, const Value& valid) {
  if (Value known = find(point, operand, map, valid.id); known.valid()) return known;
  if (bound_.contains({operand.node, operand.output}) && !operand.is_leaf()) {
    throw NotFusible{operand};
  }
  Value result;
  if (operand.is_leaf() || stored_(operand)) {
    result =
        load_at(operand, map.flatten(graph_.spec(operand).shape, domain_.rank()), point, valid);
  } else {
    const Node& node = graph_.nodes[operand.node];
    if (node.op->info.kind == OpKind::Movement) {
      const Operand in = node.inputs[0];
      const Operand base = resolve_reshapes(graph_, operand);
      if (base != operand && (base.is_leaf() || stored_(base))) {
        // What is in memory has no axes of its own, so any reshape of it is only a flat position.
        const AffineExpr flat = map.flatten(node.outputs[0].spec.shape, domain_.rank());
        result = load_at(base, flat, point, valid);
        point.known.push_back({operand, map, valid.id, result});
        return result;
      }
      const View view(map, node.outputs[0].spec.shape, graph_.spec(in).shape, domain_, in);
      result = evaluate(in, node.op->view(view, node.attr()), point, valid);
    } else if (node.op->info.kind == OpKind::Elementwise) {
      Emit emit(*this, operand.node, map, point, valid);
      result = wrap(node.op->emit(emit, node.attr()), node.outputs[0].spec.dtype);
      OA_CHECK(result.scalar() == value_scalar(node.outputs[0].spec.dtype));
    } else {
      throw NotFusible{operand};
    }
  }
  point.known.push_back({operand, map, valid.id, result});
  return result;
}

Value Evaluator::load_at(Operand operand, const AffineExpr& expr, Point& point,
                         const Value& valid) {
  if (dry_) needs_.loads.emplace_back(operand, expr);
  const AffineExpr flat = over_loops(expr);
  const Buffer& b = buffer(operand);
  if (!valid.valid() &&
      std::all_of(expr.coef.begin(), expr.coef.end(), [](i64 c) { return c == 0; })) {
    // Not where the only position may replace what it reads: lanes beside it would read it too.
    if (dry_ && graph_.spec(operand).shape.elements() > 0 && domain_.elements() > 1) {
      needs_.fixed.emplace_back(operand, expr.offset);
    }
    for (const auto& [key, loaded] : fixed_) {
      if (key == std::pair(operand, expr.offset)) return loaded;
    }
  }
  // A pack of consecutive positions loads once, where its memory is consecutive and aligned.
  if (point.parts > 1 && !valid.valid() && !flat.coef.empty()) {
    const size_t along = std::min<size_t>(point.pack_axis, flat.coef.size() - 1);
    bool aligned = flat.offset % point.parts == 0 && flat.coef[along] == 1;
    for (size_t d = 0; d < flat.coef.size(); ++d) {
      aligned = aligned && (d == along || flat.coef[d] % point.parts == 0);
    }
    if (aligned) {
      for (const auto& [key, wide] : *point.shared) {
        if (key.first == operand && key.second == flat) return kernel::extract(wide, point.part);
      }
      OA_CHECK(point.part == 0);  // the first part of a pack is evaluated first
      const Value wide = b.load(affine(expr, point), point.parts);
      point.shared->push_back({{operand, flat}, wide});
      return kernel::extract(wide, 0);
    }
  }
  Value index = affine(expr, point);
  if (!valid.valid()) return b.load(index);
  // A CPU loads neighbours under a mask; a chosen index would make it gather.
  if (kernel::target().is_cpu()) {
    const kernel::VarValue loaded(kernel::literal(kernel::value_scalar(b.elem()), 0));
    kernel::If(kernel::Bool(valid), [&] { loaded.set(b.load(index)); });
    return loaded.get();
  }
  return b.load(kernel::select(valid, index, kernel::constant_int(index_type_, 0)));
}

Value Evaluator::load(Operand operand, const Value& index) {
  if (dry_) needs_.loads.emplace_back(operand, std::nullopt);
  return buffer(operand).load(index);
}

// --- Emit ---------------------------------------------------------------------------------------

Value Emit::track(u32 i) {
  tracked_ = kernel::independent(input(i));
  tracked_input_ = i;
  return tracked_;
}

Value Emit::input(u32 i) {
  if (i == tracked_input_) return tracked_;
  const Shape& in = shape(i);
  const Shape& out = out_shape();
  if (in == out) return input_at(i, map_);
  AffineMap map;
  const u32 skip = out.rank() - in.rank();
  for (u32 a = 0; a < in.rank(); ++a) {
    map.axes.push_back(in[a] == 1 && out[a + skip] != 1 ? constant(0) : map_.axes[a + skip]);
  }
  return input_at(i, map);
}

Value Emit::input_at(u32 i, const AffineMap& map) {
  OA_CHECK(i != tracked_input_);  // an op that moves elements states its own gradient
  return evaluator_.evaluate(node_.inputs[i], map, point_, valid_);
}

Value Emit::input_if(u32 i, const AffineMap& map, const Value& valid) {
  OA_CHECK(i != tracked_input_);
  const Value both = valid_.valid() ? (valid_ & valid) : valid;
  return evaluator_.evaluate(node_.inputs[i], map, point_, both);
}

Value Emit::input_indexed(u32 i, std::span<const Value> coords, const Value& valid) {
  const Operand operand = resolve_reshapes(evaluator_.graph_, node_.inputs[i]);
  OA_CHECK(node_.op->info.reads_indexed(i) && i != tracked_input_);
  const Dims strides = shape(i).strides();
  const kernel::Scalar type = evaluator_.index_type();
  Value index;
  for (u32 a = 0; a < coords.size(); ++a) {
    Value term = kernel::cast(coords[a], type);
    if (strides[a] != 1) term = term * kernel::constant_int(type, strides[a]);
    index = index.valid() ? index + term : term;
  }
  if (!index.valid()) index = kernel::constant_int(type, 0);
  Value guard = valid;
  if (valid_.valid()) guard = guard.valid() ? (guard & valid_) : valid_;
  if (guard.valid()) index = kernel::select(guard, index, kernel::constant_int(type, 0));
  return evaluator_.load(operand, index);
}

Value Emit::coord(u32 axis) { return coord(map_.axes[axis]); }
Value Emit::coord(const AffineExpr& e) { return evaluator_.affine(e, point_); }
Value Emit::flat_index() {
  return evaluator_.affine(map_.flatten(out_shape(), evaluator_.domain().rank()), point_);
}
Value Emit::scalar(u32 k, kernel::Scalar type) {
  return evaluator_.scalar(node_.first_scalar + k, type);
}

void Emit::check(const Value& bad, const Value& row, const Value& value) {
  if (evaluator_.dry_) {
    auto& checks = evaluator_.needs_.checks;
    if (std::find(checks.begin(), checks.end(), node_id_) == checks.end())
      checks.push_back(node_id_);
    return;
  }
  const Value guarded = valid_.valid() ? (bad & valid_) : bad;
  const Value code =
      evaluator_.check_base_ +
      kernel::constant_int(kernel::Scalar::U32, evaluator_.check_slots_.at(node_id_));
  report_index(*evaluator_.status_, code, guarded, row, value);
}

}  // namespace oa::graph
