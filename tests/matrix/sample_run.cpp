#include "sample_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "oa/matrix/movement.h"
#include "oa/matrix/record.h"
#include "tests/support/interpreter_device.h"

namespace oa::test {

// --- Elements and their bits ---

std::vector<u8> encode(DType t, const std::vector<f64>& v) {
  std::vector<u8> bytes(v.size() * size_bytes(t));
  const auto put = [&](size_t i, auto x) { std::memcpy(&bytes[i * sizeof x], &x, sizeof x); };
  for (size_t i = 0; i < v.size(); ++i) {
    switch (t) {
      case DType::F32: put(i, static_cast<f32>(v[i])); break;
      case DType::F64: put(i, v[i]); break;
      case DType::F16: put(i, f32_to_f16(static_cast<f32>(v[i]))); break;
      case DType::BF16: put(i, f32_to_bf16(static_cast<f32>(v[i]))); break;
      case DType::I32: put(i, static_cast<i32>(v[i])); break;
      case DType::U32: put(i, static_cast<u32>(v[i])); break;
      case DType::U8: put(i, static_cast<u8>(v[i])); break;
      case DType::Bool: put(i, static_cast<u8>(v[i] != 0)); break;
    }
  }
  return bytes;
}

std::vector<f64> decode(DType t, const std::vector<u8>& bytes) {
  std::vector<f64> v(bytes.size() / size_bytes(t));
  const auto get = [&]<class T>(size_t i, T) {
    T x;
    std::memcpy(&x, &bytes[i * sizeof x], sizeof x);
    return x;
  };
  for (size_t i = 0; i < v.size(); ++i) {
    switch (t) {
      case DType::F32: v[i] = get(i, f32()); break;
      case DType::F64: v[i] = get(i, f64()); break;
      case DType::F16: v[i] = f16_to_f32(get(i, u16())); break;
      case DType::BF16: v[i] = bf16_to_f32(get(i, u16())); break;
      case DType::I32: v[i] = get(i, i32()); break;
      case DType::U32: v[i] = get(i, u32()); break;
      case DType::U8:
      case DType::Bool: v[i] = get(i, u8()); break;
    }
  }
  return v;
}

std::vector<u8> bits_of(const Matrix& m) {
  std::vector<u8> bytes(static_cast<size_t>(m.num_elements()) * size_bytes(m.dtype()));
  m.read_into(m.dtype(), bytes.data());
  return bytes;
}

// --- Operands of samples ---

// Subnormal numbers may count as zeros, so only ops that move elements get them.
f64 special_of(DType t, bool subnormal, u64 k) {
  const f64 inf = std::numeric_limits<f64>::infinity();
  const f64 nan = std::numeric_limits<f64>::quiet_NaN();
  if (is_float(t)) {
    const f64 tiny = t == DType::F64    ? 0x1p-1074
                     : t == DType::F16  ? 0x1p-24
                     : t == DType::BF16 ? 0x1p-133
                                        : 0x1p-149;
    const f64 list[] = {nan, inf, -inf, 0.0,  -0.0, greatest(t), -greatest(t), least_normal(t),
                        1,   -1,  0.5,  -2.5, tiny, -3 * tiny};
    return list[k % (std::size(list) - (subnormal ? 0 : 2))];
  }
  const f64 low = t == DType::I32 ? -0x1p31 : 0;
  const f64 high = t == DType::I32   ? 0x1p31 - 1
                   : t == DType::U32 ? 0x1p32 - 1
                   : t == DType::U8  ? 255
                                     : 1;
  const f64 list[] = {low, high, 0, 1, high - 1};
  return list[k % std::size(list)];
}

Array draw(const SampleOperand& s, bool subnormal, u32 seed) {
  std::mt19937 rng(seed);
  Array a{s.dtype, s.shape, {}};
  const f64 low = s.dtype == DType::U32 || s.dtype == DType::U8 ? std::max(0.0, s.low) : s.low;
  const f64 high = s.dtype == DType::U8 ? std::min(255.0, s.high) : s.high;
  for (i64 i = 0; i < s.shape.elements(); ++i) {
    const f64 unit = static_cast<f64>(rng()) * 0x1p-32;
    f64 x = low + (high - low) * unit;
    if (s.dtype == DType::Bool) x = unit < 0.5;
    if (is_integer(s.dtype)) x = std::floor(low + (high - low + 1) * unit);
    if (s.special && rng() % 2 == 0) x = special_of(s.dtype, subnormal, rng());
    a.v.push_back(stored(s.dtype, x));
  }
  return a;
}

bool moves_elements(const OpDef& op) {
  constexpr std::string_view moving[] = {"copy", "where", "concat", "pad"};
  return op.info.kind == graph::OpKind::Movement ||
         std::find(std::begin(moving), std::end(moving), op.name()) != std::end(moving);
}

std::vector<Array> operands_of(const OpDef& op, const Sample& s) {
  const bool subnormal = moves_elements(op);
  std::vector<Array> list;
  for (u32 i = 0; i < s.operands.size(); ++i)
    list.push_back(draw(s.operands[i], subnormal, 17 * i + 5));
  return list;
}

Matrix upload(const Engine& e, const Array& a) {
  const std::vector<u8> bytes = encode(a.dtype, a.v);
  return Matrix::upload(e, a.shape, a.dtype, bytes.data(), a.v.size());
}

// The same elements by other means; forms that need an axis leave values of rank 0 as they are.
Matrix in_form(const Engine& e, const Array& a, Form form) {
  const Matrix x = upload(e, a);
  if (form == Form::Plain || a.shape.rank() == 0) return x;
  switch (form) {
    case Form::Plain: break;
    case Form::Permuted: {
      Dims reverse;
      for (u32 i = a.shape.rank(); i-- > 0;) reverse.push_back(i);
      const Matrix turned = matrix::permute(x, reverse);
      e.core().flush();  // the turned elements are in memory
      return matrix::permute(turned, reverse);
    }
    case Form::Sliced: {
      const Matrix wide = matrix::pad(x, -1, 2, 3, 1);
      e.core().flush();
      return matrix::slice(wide, -1, 2, 2 + a.shape.back());
    }
    case Form::Flipped: {
      const Matrix back = matrix::flip(x, 0);
      e.core().flush();
      return matrix::flip(back, 0);
    }
    case Form::Joined: {
      const i64 half = a.shape[0] / 2;
      return matrix::concat({matrix::slice(x, 0, 0, half), matrix::slice(x, 0, half, a.shape[0])},
                            0);
    }
  }
  return x;
}

std::vector<Matrix> apply(const Engine& e, const OpDef& op, const Sample& s,
                          const std::vector<Array>& operands, Form form) {
  std::vector<graph::TensorRef> inputs;
  for (const Array& a : operands) inputs.push_back(in_form(e, a, form).tensor());
  const std::vector<graph::TensorRef> results = e.core().graph().record(op, s.attrs, inputs);
  return {results.begin(), results.end()};
}

std::string describe(const OpDef& op, const Sample& s) {
  std::string text = fmt::format("{}(", op.name());
  for (const SampleOperand& o : s.operands) {
    text += fmt::format("{}{}{} ", token(o.dtype), o.shape, o.special ? "*" : "");
  }
  for (const graph::AttrValue& a : s.attrs->values()) {
    std::visit([&](const auto& x) { text += fmt::format("; {}", x); }, a);
  }
  return text + ")";
}

bool needs_f64(const Sample& s) {
  return std::any_of(s.operands.begin(), s.operands.end(),
                     [](const SampleOperand& o) { return o.dtype == DType::F64; });
}

static const Reference* reference_of(const OpDef& op, const Sample& s) {
  const auto& table = references();
  auto it = table.find(std::string(op.name()));
  if (it == table.end()) it = table.find(fmt::format("{}/{}", op.name(), s.operands.size()));
  return it == table.end() ? nullptr : &it->second;
}

// Empty if the result is right, else what is wrong with it.
Expected expected_of(const OpDef& op, const Sample& s, const std::vector<Array>& operands) {
  if (const Reference* r = reference_of(op, s)) return (*r)(operands, s.attrs->values());
  Engine e = Engine::open_on(std::make_unique<InterpreterDevice>(cpu_target()), {.fuse = false});
  const Matrix result = apply(e, op, s, operands)[0];
  Expected expected;
  expected.value = {result.dtype(), result.shape(), decode(result.dtype(), bits_of(result))};
  if (!is_float(result.dtype())) return expected;
  expected.ulps = 8;
  expected.composite = op.info.kind == graph::OpKind::Composite;
  for (f64 x : expected.value.v) expected.scale.push_back(std::isfinite(x) ? std::abs(x) + 1 : x);
  return expected;
}

std::string judge(const Expected& e, const Matrix& got, bool flushes_denormals) {
  if (got.dtype() != e.value.dtype) return fmt::format("dtype {}", token(got.dtype()));
  if (got.shape() != e.value.shape) {
    return fmt::format("shape {}, expected {}", got.shape(), e.value.shape);
  }
  const std::vector<f64> v = decode(got.dtype(), bits_of(got));
  for (size_t i = 0; i < v.size(); ++i) {
    const f64 want = e.value.v[i];
    f64 bound = allowed_error(e, i);
    if (std::isinf(bound)) continue;
    if (flushes_denormals && is_float(got.dtype())) bound += least_normal(DType::F32);
    bool right = v[i] == want || (std::isnan(v[i]) && std::isnan(want));
    right = right || std::abs(v[i] - want) <= bound;
    // The last steps before the end of the range may overflow.
    right = right || (e.ulps > 0 && std::isinf(v[i]) && v[i] * want > 0 &&
                      std::abs(want) >= greatest(got.dtype()) * (1 - 8 * epsilon(got.dtype())));
    if (right && want == 0 && e.ulps == 0 && e.signed_zero && !flushes_denormals) {
      right = std::signbit(v[i]) == std::signbit(want);
    }
    if (!right) {
      return fmt::format("element {} of {} is {}, expected {} within {}", i, got.shape(), v[i],
                         want, bound);
    }
  }
  return "";
}

}  // namespace oa::test
