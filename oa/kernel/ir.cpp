#include "oa/kernel/ir.h"

namespace oa::kernel {

const char* name(Op op) {
  // clang-format off
  static constexpr const char* kNames[] = {
      "const", "param", "lane_id", "group_id", "group_count",
      "neg", "abs", "not", "sqrt", "floor", "ceil", "trunc", "round_even",
      "add", "sub", "mul", "div", "rem", "min", "max", "mul_hi",
      "and", "or", "xor", "shl", "shr", "fma",
      "eq", "ne", "lt", "le", "gt", "ge", "select", "cast", "bitcast",
      "vec_build", "vec_extract",
      "load", "store", "atomic", "atomic_cas",
      "shared_load", "shared_store", "shared_atomic", "var_load", "var_store",
      "shuffle", "shuffle_xor", "subgroup_any", "subgroup_all", "barrier",
      "frag_fill", "frag_load", "frag_store", "frag_mul_add", "frag_add", "frag_mul", "frag_cast",
      "if", "for", "while", "yield"};
  // clang-format on
  static_assert(std::size(kNames) == static_cast<size_t>(Op::Yield) + 1);
  return kNames[static_cast<int>(op)];
}

const char* name(Scalar s) {
  static constexpr const char* kNames[] = {"bool", "u8",  "i32",  "u32", "i64",
                                           "u64",  "f16", "bf16", "f32", "f64"};
  return kNames[static_cast<int>(s)];
}

bool yields_value(Op op) {
  switch (op) {
    case Op::Store:
    case Op::SharedStore:
    case Op::VarStore:
    case Op::FragStore:
    case Op::Barrier:
    case Op::If:
    case Op::While:
    case Op::Yield: return false;
    default: return true;  // For yields its index, inside its body
  }
}

}  // namespace oa::kernel
