#include "oa/kernel/differentiate.h"

#include <cmath>
#include <numbers>
#include <unordered_map>

#include "oa/core/error.h"
#include "oa/kernel/math.h"
#include "oa/kernel/traced.h"

namespace oa::kernel {
namespace {

// Derivatives with respect to one value, made on demand. An invalid Value stands for 0.
class Forward {
 public:
  explicit Forward(const Value& x) : x_(x) {}

  Value of(ValueId id) {
    // Earlier instructions cannot use x.
    if (id < x_.id) return {};
    if (id == x_.id) return constant(x_.scalar(), 1);
    if (auto it = known_.find(id); it != known_.end()) return it->second;
    const Instr in = traced_instr(id);  // a copy: recording moves the list
    Value d;
    if (is_float(in.type.scalar)) {
      const FunctionMark* mark = traced_function(id);
      d = mark ? of_function(*mark, Value(id, in.type)) : of_instr(in, Value(id, in.type));
    }
    known_[id] = d;
    return d;
  }

 private:
  static Value value(ValueId id) { return Value(id, traced_instr(id).type); }
  static Value plus(const Value& a, const Value& b) {
    return !a.valid() ? b : !b.valid() ? a : a + b;
  }
  static Value times(const Value& d, const Value& factor) { return d.valid() ? d * factor : d; }
  static Value minus(const Value& d) { return d.valid() ? -d : d; }
  static Value zero(const Value& like) { return constant(like.scalar(), 0); }

  Value chosen(const Value& cond, const Value& a, const Value& b, const Value& like) {
    if (!a.valid() && !b.valid()) return {};
    return select(cond, a.valid() ? a : zero(like), b.valid() ? b : zero(like));
  }

  Value of_instr(const Instr& in, const Value& y) {
    const auto arg = [&](size_t i) { return value(in.args[i]); };
    const auto d = [&](size_t i) { return of(in.args[i]); };
    switch (in.op) {
      case Op::Neg: return minus(d(0));
      case Op::Abs: {
        const Value t = d(0), a = arg(0);
        if (!t.valid()) return {};
        return select(a > zero(a), t, select(a < zero(a), -t, zero(a)));
      }
      case Op::Sqrt: {
        const Value t = d(0);
        return t.valid() ? t / (y + y) : t;
      }
      case Op::Floor:
      case Op::Ceil:
      case Op::Trunc:
      case Op::RoundEven: return {};
      case Op::Add: return plus(d(0), d(1));
      case Op::Sub: return plus(d(0), minus(d(1)));
      case Op::Mul: return plus(times(d(0), arg(1)), times(d(1), arg(0)));
      case Op::Div: {
        const Value t = plus(d(0), minus(times(d(1), y)));
        return t.valid() ? t / arg(1) : t;
      }
      case Op::Rem: return plus(d(0), minus(times(d(1), trunc(arg(0) / arg(1)))));
      case Op::Min: return extremum(arg(0) < arg(1), arg(1) < arg(0), d(0), d(1), y);
      case Op::Max: return extremum(arg(0) > arg(1), arg(1) > arg(0), d(0), d(1), y);
      case Op::Fma: return plus(plus(times(d(0), arg(1)), times(d(1), arg(0))), d(2));
      case Op::Select: return chosen(arg(0), d(1), d(2), y);
      case Op::Cast: {
        if (!is_float(arg(0).scalar())) return {};
        const Value t = d(0);
        return t.valid() ? cast(t, in.type.scalar) : t;
      }
      case Op::Const:
      case Op::Param: return {};
      default: break;
    }
    for (ValueId a : in.args) {
      if (depends(a)) {
        fail(ErrorKind::Internal, "kernel::derivative",
             "instruction {} has no derivative, expected straight-line arithmetic", name(in.op));
      }
    }
    return {};
  }

  // Equal operands share, and so do the operands of a NaN.
  Value extremum(const Value& first, const Value& second, const Value& da, const Value& db,
                 const Value& like) {
    if (!da.valid() && !db.valid()) return {};
    const Value half =
        plus(times(da, constant(like.scalar(), 0.5)), times(db, constant(like.scalar(), 0.5)));
    return select(first, da.valid() ? da : zero(like),
                  select(second, db.valid() ? db : zero(like), half));
  }

  // Whether a value uses x in any way.
  bool depends(ValueId id) {
    if (id < x_.id) return false;
    if (id == x_.id) return true;
    for (ValueId a : traced_instr(id).args) {
      if (depends(a)) return true;
    }
    return false;
  }

  Value of_function(const FunctionMark& mark, const Value& y) {
    const std::string_view f = mark.function;
    const Value x = value(mark.args[0]);
    const Value t = of(mark.args[0]);
    const Scalar s = y.scalar();
    const auto number = [&](f64 v) { return constant(s, v); };
    if (f == "kernel::pow") {
      const Value exponent = value(mark.args[1]), te = of(mark.args[1]);
      Value d;
      if (t.valid()) {
        // x^0 is constant, also at 0.
        d = t * select(exponent == number(0), number(0), exponent * pow(x, exponent - number(1)));
      }
      if (te.valid()) {
        // 0^y is constant for y > 0.
        const Value flat = (x == number(0)) & (exponent >= number(0));
        d = plus(d, te * select(flat, number(0), y * log(x)));
      }
      return d;
    }
    if (!t.valid()) return t;
    if (f == "kernel::exp") return t * y;
    if (f == "kernel::exp2") return t * (y * number(std::numbers::ln2));
    if (f == "kernel::expm1") return t * (y + number(1));
    if (f == "kernel::log") return t / x;
    if (f == "kernel::log2") return t / (x * number(std::numbers::ln2));
    if (f == "kernel::log1p") return t / (x + number(1));
    if (f == "kernel::sin") return t * cos(x);
    if (f == "kernel::cos") return t * -sin(x);
    if (f == "kernel::tanh") return t * fma(-y, y, number(1));
    if (f == "kernel::sigmoid") return t * (y * (number(1) - y));
    if (f == "kernel::log_sigmoid") return t * sigmoid(-x);
    if (f == "kernel::softplus") return t * sigmoid(x);
    if (f == "kernel::erf") {
      return t * (exp(-(x * x)) * number(2 / std::sqrt(std::numbers::pi)));
    }
    if (f == "kernel::rsqrt") return t * (y * y * y * number(-0.5));
    fail(ErrorKind::Internal, "kernel::derivative", "function {} has no derivative", f);
  }

  Value x_;
  std::unordered_map<ValueId, Value> known_;
};

}  // namespace

Value independent(const Value& v) { return emit(Op::Mul, v.type, {v, constant(v.scalar(), 1)}); }

Value derivative(const Value& y, const Value& x) { return Forward(x).of(y.id); }

}  // namespace oa::kernel
