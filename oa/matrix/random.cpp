#include "oa/matrix/random.h"

#include <cmath>

#include "oa/kernel/philox.h"
#include "oa/matrix/all_ops.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/record.h"
#include "oa/matrix/sample_sets.h"

namespace oa::matrix {
namespace {

using kernel::Value;

// --- Kernel side ---

// The first three Scalar attributes of every op that draws.
struct Key {
  Scalar seed_low;
  Scalar seed_high;
  Scalar stream;
};

// The Philox block of the element's group of four. `step` is the operand with the step, if any.
kernel::PhiloxCounter block_of(Emit& e, const Value& element, u32 step) {
  const auto scalar = [&](u32 k) { return kernel::U32(e.scalar(k, kernel::Scalar::U32)); };
  kernel::U32 low = 0, high = 0;
  if (step < e.count()) {
    low = kernel::U32(e.input_at(step, {{e.constant(0)}}));
    if (e.shape(step)[0] == 2) high = kernel::U32(e.input_at(step, {{e.constant(1)}}));
  }
  const kernel::U32 block(kernel::cast(element / 4, kernel::Scalar::U32));
  return kernel::philox4x32({block, scalar(2), low, high}, {scalar(0), scalar(1)});
}

// Whether bit `bit` of the element's position is set.
kernel::Bool odd(const Value& element, u32 bit) {
  const Value mask = kernel::constant_int(element.scalar(), 1ll << bit);
  return kernel::Bool((element & mask) != kernel::constant_int(element.scalar(), 0));
}

// The element's own word.
kernel::U32 word_of(Emit& e, u32 step) {
  const Value element = e.flat_index();
  const kernel::PhiloxCounter w = block_of(e, element, step);
  const kernel::Bool one = odd(element, 0), two = odd(element, 1);
  return kernel::select(two, kernel::select(one, w[3], w[2]), kernel::select(one, w[1], w[0]));
}

// --- Rules ---

void need_step(const Infer& in, u32 step) {
  if (step >= in.count()) return;
  const Shape& s = in.shape(step);
  if (in.dtype(step) != DType::U32 || s.rank() != 1 || (s[0] != 1 && s[0] != 2)) {
    in.reject("bad step counter, got {} {}, expected u32 [1] or [2]", token(in.dtype(step)), s);
  }
}

void need_countable(const Infer& in, const Shape& shape) {
  constexpr i64 kMost = 1ll << 34;
  if (shape.elements() > kMost) {
    in.reject("too many elements, got shape {}, expected at most 2^34 elements", shape);
  }
}

// --- The ops ---

// Ops with kImplicit took their seed from the engine: a capture would repeat it at each replay.
template <bool kImplicit>
struct Uniform {
  static constexpr OpInfo kInfo{
      .name = "philox_uniform", .kind = OpKind::Elementwise, .cost = 60, .host_state = kImplicit};
  struct Attrs {
    Scalar seed_low, seed_high, stream;
    Scalar low, high;
    Scalar last;  // the greatest number below high
    Shape shape;
  };
  static void infer(Infer& in, const Attrs& a) {
    need_step(in, 0);
    check_shape(in.op(), a.shape, size_bytes(DType::F32));
    need_countable(in, a.shape);
    in.out(DType::F32, a.shape);
  }
  static Value emit(Emit& e, const Attrs&) {
    const kernel::F32 u = kernel::unit_from_word(word_of(e, 0));
    const kernel::F32 low(e.scalar(3)), high(e.scalar(4)), last(e.scalar(5));
    // Rounding must not leave the interval; the difference of the bounds might overflow.
    return kernel::min(kernel::max(low * (1.0f - u) + high * u, low), last);
  }
  static void samples(Samples& s) {
    for (const Shape& shape : {Shape{41}, Shape{}, Shape{3, 0}, Shape{3, 5, 7}}) {
      s.call({}, Attrs{7, 8, 9, -1, 2, 1.9, shape});
      s.call({{{1}, DType::U32, 0, 9}}, Attrs{7, 8, 9, -1, 2, 1.9, shape});
    }
    const Shape shape{3};
    s.reject({{{3}, DType::U32}}, Attrs{7, 8, 9, -1, 2, 1.9, shape},
             fmt::format("{}: bad step counter, got u32 [3], expected u32 [1] or [2]", kInfo.name));
  }
};

template <bool kImplicit>
struct Normal {
  static constexpr OpInfo kInfo{
      .name = "philox_normal", .kind = OpKind::Elementwise, .cost = 90, .host_state = kImplicit};
  struct Attrs {
    Scalar seed_low, seed_high, stream;
    Scalar mean, stddev;
    Shape shape;
  };
  static void infer(Infer& in, const Attrs& a) {
    need_step(in, 0);
    check_shape(in.op(), a.shape, size_bytes(DType::F32));
    need_countable(in, a.shape);
    in.out(DType::F32, a.shape);
  }
  static Value emit(Emit& e, const Attrs&) {
    // Words 0 and 1 make the values of elements 0 and 1 of the four, words 2 and 3 the others.
    const Value element = e.flat_index();
    const kernel::PhiloxCounter w = block_of(e, element, 0);
    const kernel::Bool two = odd(element, 1);
    const auto [first, second] =
        kernel::normal_pair(kernel::select(two, w[2], w[0]), kernel::select(two, w[3], w[1]));
    const kernel::F32 z = kernel::select(odd(element, 0), second, first);
    return kernel::F32(e.scalar(3)) + kernel::F32(e.scalar(4)) * z;
  }
  static void samples(Samples& s) {
    for (const Shape& shape : {Shape{41}, Shape{}, Shape{3, 0}, Shape{3, 5, 7}}) {
      s.call({}, Attrs{7, 8, 9, 0.5, 2, shape});
      s.call({{{1}, DType::U32, 0, 9}}, Attrs{7, 8, 9, 0.5, 2, shape});
    }
    const Shape shape{3};
    s.reject({{{3}, DType::U32}}, Attrs{7, 8, 9, 0.5, 2, shape},
             fmt::format("{}: bad step counter, got u32 [3], expected u32 [1] or [2]", kInfo.name));
  }
};

template <bool kImplicit>
struct Dropout {
  static constexpr OpInfo kInfo{
      .name = "dropout", .kind = OpKind::Elementwise, .cost = 60, .host_state = kImplicit};
  struct Attrs {
    Scalar seed_low, seed_high, stream;
    Scalar p, scale;
  };
  static void infer(Infer& in, const Attrs&) {
    if (!is_float(in.dtype(0))) {
      in.reject("operand 0 has the wrong dtype, got {}, expected a float", token(in.dtype(0)));
    }
    need_step(in, 1);
    need_countable(in, in.shape(0));
    in.out(in.dtype(0), in.shape(0));
  }
  static Value emit(Emit& e, const Attrs&) {
    const Value x = e.input(0);
    const kernel::F32 u = kernel::unit_from_word(word_of(e, 1));
    return kernel::select(u >= kernel::F32(e.scalar(3)), x * e.scalar(4, x.scalar()),
                          kernel::literal(x.scalar(), 0));
  }
  // The same draw again.
  static std::vector<TensorRef> gradient(const Gradient& g, const Attrs& a) {
    std::vector<TensorRef> inputs(g.inputs.begin(), g.inputs.end());
    inputs[0] = g.grads[0];
    std::vector<TensorRef> result(inputs.size());
    result[0] = record_all<Dropout>(inputs, a)[0];
    return result;
  }
  static void samples(Samples& s) {
    for (DType t : kFloats) s.call({{{5, 9}, t}}, Attrs{7, 8, 9, 0.3, 1 / 0.7});
    s.call({{{41}}, {{2}, DType::U32, 0, 9}}, Attrs{7, 8, 9, 1, 0});
    s.reject({{{3}, DType::I32}}, Attrs{7, 8, 9, 0.3, 1},
             "dropout: operand 0 has the wrong dtype, got i32, expected a float");
  }
};

// --- Host side ---

Key key_of(const RandomSource& source, graph::Recorder& recorder) {
  u64 seed = 0;
  if (source.seed) {
    seed = *source.seed;
  } else {
    auto* core = dynamic_cast<EngineCore*>(&recorder);
    OA_CHECK(core != nullptr);  // definitions of ops hand a seed on
    seed = core->next_seed();
  }
  return {static_cast<f64>(seed & 0xffffffffu), static_cast<f64>(seed >> 32),
          static_cast<f64>(source.stream)};
}

// Records Op<true> or Op<false> with what `attrs` makes of the key.
template <template <bool> class Op, class MakeAttrs>
Matrix draw(graph::Recorder& recorder, const Matrix* x, const RandomSource& source,
            MakeAttrs&& attrs) {
  std::vector<TensorRef> inputs;
  if (x) inputs.push_back(x->tensor());
  if (source.step.valid()) inputs.push_back(source.step.tensor());
  recorder.check_open(Op<false>::kInfo.name);
  const Key key = key_of(source, recorder);
  const auto record_as = [&]<bool kImplicit>(std::bool_constant<kImplicit>) {
    return recorder.graph().record(
        graph::op_def<Op<kImplicit>>(),
        graph::make_attrs<Op<kImplicit>>(
            attrs.template operator()<typename Op<kImplicit>::Attrs>(key)),
        inputs)[0];
  };
  return Matrix(source.seed ? record_as(std::false_type()) : record_as(std::true_type()));
}

graph::Recorder& recorder_of(std::string_view op, const Matrix& x) {
  if (!x.valid()) invalid(op, "operand 0 is empty, expected a value");
  return x.tensor()->recorder();
}

Matrix draw_uniform(graph::Recorder& recorder, const Shape& shape, f64 low, f64 high,
                    const RandomSource& source) {
  const f32 a = static_cast<f32>(low), b = static_cast<f32>(high);
  if (!(a < b) || !std::isfinite(a) || !std::isfinite(b)) {
    invalid("philox_uniform", "bad bounds, got {} to {}, expected finite low < high", low, high);
  }
  return draw<Uniform>(recorder, nullptr, source, [&]<class Attrs>(const Key& k) {
    return Attrs{k.seed_low, k.seed_high, k.stream, a, b, std::nextafter(b, a), shape};
  });
}

Matrix draw_normal(graph::Recorder& recorder, const Shape& shape, f64 mean, f64 stddev,
                   const RandomSource& source) {
  if (!std::isfinite(mean) || !std::isfinite(stddev) || stddev < 0) {
    invalid("philox_normal",
            "bad parameters, got mean {} and stddev {}, expected finite ones and "
            "stddev >= 0",
            mean, stddev);
  }
  return draw<Normal>(recorder, nullptr, source, [&]<class Attrs>(const Key& k) {
    return Attrs{k.seed_low, k.seed_high, k.stream, mean, stddev, shape};
  });
}

}  // namespace

OpList random_ops() {
  return graph::op_list<Uniform<false>, Uniform<true>, Normal<false>, Normal<true>, Dropout<false>,
                        Dropout<true>>();
}

Matrix philox_uniform(const Matrix& shape_of, f64 low, f64 high, const RandomSource& source) {
  return draw_uniform(recorder_of("philox_uniform", shape_of), shape_of.shape(), low, high, source);
}
Matrix uniform(const Engine& engine, const Shape& shape, f64 low, f64 high,
               const RandomSource& source) {
  return draw_uniform(engine.core(), shape, low, high, source);
}
Matrix philox_normal(const Matrix& shape_of, f64 mean, f64 stddev, const RandomSource& source) {
  return draw_normal(recorder_of("philox_normal", shape_of), shape_of.shape(), mean, stddev,
                     source);
}
Matrix normal(const Engine& engine, const Shape& shape, f64 mean, f64 stddev,
              const RandomSource& source) {
  return draw_normal(engine.core(), shape, mean, stddev, source);
}

Matrix dropout(const Matrix& x, f64 p, const RandomSource& source) {
  graph::Recorder& recorder = recorder_of("dropout", x);
  if (!(p >= 0 && p <= 1)) invalid("dropout", "bad probability, got {}, expected 0 to 1", p);
  if (p == 0) return x;
  // At p = 1 nothing is kept, and the factor must not be infinite where a kernel might see it.
  const f64 scale = p < 1 ? 1 / (1 - p) : 0;
  return draw<Dropout>(recorder, &x, source, [&]<class Attrs>(const Key& k) {
    return Attrs{k.seed_low, k.seed_high, k.stream, p, scale};
  });
}

void advance(const Matrix& step) {
  const graph::Spec expected{DType::U32, {step.valid() && step.num_elements() == 2 ? 2 : 1}};
  if (!step.valid() || step.tensor()->spec() != expected) {
    invalid("advance", "bad step counter, expected u32 [1] or [2]");
  }
  if (step.num_elements() == 1) {
    step.assign(step + full_like(step, 1));
    return;
  }
  const Matrix old = slice(step, 0, 0, 1), high = slice(step, 0, 1, 2);
  const Matrix low = old + full_like(old, 1);
  const Matrix carry = cast(equal(low, full_like(low, 0)), DType::U32);
  step.assign(concat({low, high + carry}, 0));
}

}  // namespace oa::matrix
