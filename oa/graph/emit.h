// Evaluation of pointwise ops inside a generated kernel.
//
// A kernel generator (codegen/) owns a loop nest, the domain, and asks an Evaluator for values at a
// Point of it. The evaluator walks from the wanted value back to what is in memory: it applies
// index maps of movement ops, calls Emit of elementwise ops, and loads. Generators run it twice: a
// dry run collects what the kernel needs (buffers, scalars, index expressions), then the kernel is
// traced.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "oa/graph/affine.h"
#include "oa/graph/graph.h"
#include "oa/kernel/lang.h"

namespace oa::graph {

kernel::Scalar element_scalar(DType t);  // the type in memory
inline kernel::Scalar value_scalar(DType t) { return kernel::value_scalar(element_scalar(t)); }

// Thrown while a group is evaluated when `node`'s value cannot be computed inside the group: it
// must be stored by a kernel of its own. Caught by the fusion stage.
struct NotFusible {
  Operand operand;
};

// What a movement op sees: the coordinates of its output, to be turned into those of its input.
class View {
 public:
  View(const AffineMap& output, const Shape& output_shape, const Shape& input_shape,
       const Shape& domain, Operand input)
      : output_(output),
        output_shape_(output_shape),
        input_shape_(input_shape),
        domain_(domain),
        input_(input) {}
  const AffineMap& output() const { return output_; }
  const AffineExpr& axis(u32 i) const { return output_.axes[i]; }
  const Shape& output_shape() const { return output_shape_; }
  const Shape& input_shape() const { return input_shape_; }
  const Shape& domain() const { return domain_; }
  AffineExpr constant(i64 value) const { return AffineMap::constant(value, domain_.rank()); }
  [[noreturn]] void not_affine() const { throw NotFusible{input_}; }

 private:
  const AffineMap& output_;
  const Shape& output_shape_;
  const Shape& input_shape_;
  const Shape& domain_;
  Operand input_;
};

// What a kernel needs from outside, in the order of its parameters.
struct Needs {
  std::vector<Operand> buffers;                         // read
  std::vector<std::pair<u32, kernel::Scalar>> scalars;  // index into Graph::scalars, and as what
  std::vector<u32> checks;                              // nodes whose indices are checked
  std::vector<AffineExpr> expressions;  // every index expression, for joining loop axes
  std::vector<std::pair<Operand, std::optional<AffineExpr>>> loads;  // nothing: a computed position
  std::vector<std::pair<Operand, i64>> fixed;  // element of an operand that every position reads

  // True if `operand` is read, and only at position `at`.
  bool only_at(Operand operand, const AffineExpr& at) const;
};

// One position of the domain. Values computed there are remembered.
struct Point {
  std::vector<kernel::Value> coords;  // per loop axis, of the evaluator's index type
  const Point* outer = nullptr;       // a point whose values are visible here (an enclosing loop)
  // Consecutive positions that load together: component `part` of a pack of `parts` along a loop
  // axis, else the last one. `shared` keeps the wide loads.
  u32 part = 0;
  u32 parts = 1;
  u32 pack_axis = ~0u;
  std::vector<std::pair<std::pair<Operand, AffineExpr>, kernel::Value>>* shared = nullptr;

  struct Known {
    Operand operand;
    AffineMap map;
    u32 valid;  // id of the guarding predicate, kNoValue for none
    kernel::Value value;
  };
  std::vector<Known> known;
};

class Evaluator {
 public:
  // `stored` tells which operands are in memory when the kernel runs. `bound` operands (reductions,
  // the contraction of the group) have values given by bind() at their canonical coordinates.
  Evaluator(const Graph& graph, std::function<bool(Operand)> stored);

  // A new domain has one loop axis per axis.
  void set_domain(Shape domain);
  const Shape& domain() const { return domain_; }
  // Joins runs of domain axes into one loop axis each: loop axis i ends with domain axis inner[i].
  // Point::coords then has one coordinate per loop axis.
  void set_loops(std::vector<u32> inner) { inner_ = std::move(inner); }
  AffineExpr over_loops(const AffineExpr& expr) const;
  kernel::Scalar index_type() const { return index_type_; }

  // Dry run: records needs instead of using parameters. Call inside trace().
  void begin_dry_run();
  Needs end_dry_run();
  // Real run: creates the parameters for the needs, and loads what every position reads. Call at
  // the top of the traced kernel.
  void declare(const Needs& needs, kernel::Scalar index_type);

  // The value of `operand` at map(point).
  kernel::Value value(Operand operand, const AffineMap& map, Point& point);
  // Makes `operand` known at map(point): later evaluations find it, none computes it.
  void bind(Operand operand, const AffineMap& map, Point& point, kernel::Value value);
  // Operands that only bind() provides; reaching one elsewhere throws NotFusible.
  void set_bound(std::set<std::pair<u32, u32>> bound) { bound_ = std::move(bound); }

  kernel::Value affine(const AffineExpr& expr, const Point& point);
  // Element `index` of a stored operand, loaded through its parameter.
  kernel::Value load(Operand operand, const kernel::Value& index);
  // The memory of a stored operand that the declared needs hold.
  const kernel::Buffer& memory(Operand operand) { return buffer(operand); }

 private:
  friend class Emit;
  kernel::Value load_at(Operand operand, const AffineExpr& flat, Point& point,
                        const kernel::Value& valid);
  kernel::Value evaluate(Operand operand, const AffineMap& map, Point& point,
                         const kernel::Value& valid);
  kernel::Value find(const Point& point, Operand operand, const AffineMap& map, u32 valid) const;
  const kernel::Buffer& buffer(Operand operand);
  kernel::Value scalar(u32 index, kernel::Scalar type);

  const Graph& graph_;
  std::function<bool(Operand)> stored_;
  std::set<std::pair<u32, u32>> bound_;
  Shape domain_;
  std::vector<u32> inner_;  // innermost domain axis of each loop axis
  kernel::Scalar index_type_ = kernel::Scalar::U32;
  bool dry_ = false;
  Needs needs_;
  std::vector<std::pair<Operand, kernel::Buffer>> buffers_;
  std::map<std::pair<u32, kernel::Scalar>, kernel::Value> scalars_;
  std::vector<std::pair<std::pair<Operand, i64>, kernel::Value>> fixed_;  // loaded by declare()
  std::map<u32, u32> check_slots_;
  std::optional<kernel::Buffer> status_;
  kernel::Value check_base_;
};

// What the emit function of an elementwise op sees.
class Emit {
 public:
  Emit(Evaluator& evaluator, u32 node, const AffineMap& map, Point& point, kernel::Value valid)
      : evaluator_(evaluator),
        node_id_(node),
        node_(evaluator.graph_.nodes[node]),
        map_(map),
        point_(point),
        valid_(std::move(valid)) {}

  u32 count() const { return static_cast<u32>(node_.inputs.size()); }
  const Shape& shape(u32 input) const { return evaluator_.graph_.spec(node_.inputs[input]).shape; }
  DType dtype(u32 input) const { return evaluator_.graph_.spec(node_.inputs[input]).dtype; }
  const Shape& out_shape() const { return node_.outputs[0].spec.shape; }
  DType out_dtype() const { return node_.outputs[0].spec.dtype; }

  // Input i at the output's coordinates; axes of extent 1 and missing leading axes broadcast.
  kernel::Value input(u32 i);
  // Makes input(i) an independent value from now on, and returns it: what kernel::derivative()
  // differentiates by. Reading input i at other coordinates is then an error (Internal).
  kernel::Value track(u32 i);
  // Input i at other coordinates. With `valid`, memory is not touched where it is false and the
  // value there is unspecified.
  kernel::Value input_at(u32 i, const AffineMap& map);
  kernel::Value input_if(u32 i, const AffineMap& map, const kernel::Value& valid);
  // Input i (named in OpInfo::indexed_inputs) at computed coordinates, which must be in range where
  // `valid` holds; where it does not, memory is not touched and the value is unspecified.
  kernel::Value input_indexed(u32 i, std::span<const kernel::Value> coords,
                              const kernel::Value& valid);

  const AffineMap& map() const { return map_; }
  AffineExpr constant(i64 value) const {
    return AffineMap::constant(value, evaluator_.domain().rank());
  }
  kernel::Value coord(u32 axis);             // of the output, U32 (U64 in huge groups)
  kernel::Value coord(const AffineExpr& e);  // value of any expression, e.g. of a shifted axis
  kernel::Value flat_index();                // row-major position in the output
  // The k-th Scalar attribute as F32, F64, I32 or U32; integers arrive exactly, others saturate.
  kernel::Value scalar(u32 k, kernel::Scalar type = kernel::Scalar::F32);
  kernel::Scalar index_type() const { return evaluator_.index_type(); }

  // Checked indices: where `bad` holds, the next synchronisation raises OutOfRange naming the op,
  // `row` and `value` (as a signed number).
  void check(const kernel::Value& bad, const kernel::Value& row, const kernel::Value& value);

 private:
  Evaluator& evaluator_;
  u32 node_id_;
  const Node& node_;
  const AffineMap& map_;
  Point& point_;
  kernel::Value valid_;
  u32 tracked_input_ = kNoNode;
  kernel::Value tracked_;
};

}  // namespace oa::graph
