// Loads and stores: one scalar where address and index are uniform, contiguous vectors where the
// index is affine with a fitting stride, else one access per lane. Variables are at the end.
#include <algorithm>

#include "oa/codegen/llvm/lower.h"
#include "oa/core/error.h"

namespace oa::codegen {

using kernel::Op;

Lowering::Access Lowering::access(const Instr& instr) {
  const bool is_shared = instr.op == Op::SharedLoad || instr.op == Op::SharedStore;
  if (is_shared) return {instr.elem, 1, shared_[instr.slot], kernel::kNoValue, instr.args[0]};
  const ValueId address = instr.args[0];
  LlvmValue base = nullptr;
  if (shape(address).uniform()) {
    base = LLVMBuildIntToPtr(b_.at, scalar(address), b_.ptr, "");
  }
  return {instr.elem, 1, base, address, instr.args[1]};
}

void Lowering::load(ValueId id) {
  const Instr& instr = k_[id];
  Access a = access(instr);
  a.lanes = instr.type.lanes;
  const kernel::LaneShape& index = shape(a.index);
  const u32 size = size_bytes(a.elem);
  const LlvmType elem = b_.memory_type(a.elem);
  if (a.base && index.uniform()) {
    for (u32 part = 0; part < a.lanes; ++part) {
      const LlvmValue from =
          b_.element(elem, a.base, b_.add(wide_index(a.index), b_.integer(b_.i64, part)));
      set(id, part, from_memory(a.elem, b_.load(elem, from, size)));
    }
    return;
  }
  if (!a.base || !index.affine || (mask_ && !has_masked_vectors(size))) return gather(id, a);
  if (a.lanes == 1 && index.stride == 1) {
    return set(id, 0,
               from_memory(a.elem, load_vector(elem, affine_pointer(a), width_, mask_, size)));
  }
  if (a.lanes == 1 && index.stride == -1) {
    const LlvmValue last =
        b_.element(elem, affine_pointer(a), b_.integer(b_.i64, 1 - static_cast<u64>(width_)));
    const LlvmValue mask = mask_ ? reversed(mask_) : nullptr;
    return set(id, 0, from_memory(a.elem, reversed(load_vector(elem, last, width_, mask, size))));
  }
  if (a.lanes > 1 && index.stride == a.lanes) {
    const LlvmValue mask = mask_ ? repeated(mask_, a.lanes) : nullptr;
    const LlvmValue all = load_vector(elem, affine_pointer(a), width_ * a.lanes, mask, size);
    for (u32 part = 0; part < a.lanes; ++part) {
      std::vector<u32> lanes(width_);
      for (u32 l = 0; l < width_; ++l) lanes[l] = l * a.lanes + part;
      set(id, part, from_memory(a.elem, b_.shuffle(all, lanes)));
    }
    return;
  }
  if (a.lanes == 1 && !mask_ && index.stride >= 2 && index.stride <= 4) return load_strided(id, a);
  if (a.lanes == 4 && is_spread(a) && width_ >= 4) return load_rows(id, a);
  gather(id, a);
}

// Four consecutive elements per lane, the lanes at a constant distance: one short vector per lane,
// transposed in blocks of four lanes by four elements.
void Lowering::load_rows(ValueId id, const Access& a) {
  const u32 size = size_bytes(a.elem);
  const LlvmType row = Builder::vector(b_.memory_type(a.elem), 4);
  std::vector<u32> order;
  const auto ordered = [&](u32 n, const auto& place) {
    order.clear();
    for (u32 i = 0; i < n; ++i) order.push_back(place(i));
    return std::span<const u32>(order);
  };
  // quarter[j]: the rows of lanes j, j + 4, j + 8, ... one behind the other
  std::vector<LlvmValue> quarter;
  for (u32 j = 0; j < 4; ++j) {
    std::vector<LlvmValue> level;
    for (u32 l = j; l < width_; l += 4) {
      level.push_back(b_.load(row, spread_pointer(a, l, 0), size));
    }
    for (u32 n = 4; level.size() > 1; n *= 2) {
      std::vector<LlvmValue> next;
      for (size_t i = 0; i < level.size(); i += 2) {
        next.push_back(b_.shuffle(level[i], level[i + 1], ordered(2 * n, [](u32 k) { return k; })));
      }
      level = std::move(next);
    }
    quarter.push_back(level[0]);
  }
  // Element e of block i of two vectors, for elements first and first + 1 in turn.
  const auto interleave = [&](LlvmValue x, LlvmValue y, u32 first) {
    return b_.shuffle(x, y, ordered(width_, [&](u32 k) {
                        return k / 4 * 4 + first + k % 4 / 2 + k % 2 * width_;
                      }));
  };
  const auto join = [&](LlvmValue x, LlvmValue y, u32 first) {
    return b_.shuffle(x, y, ordered(width_, [&](u32 k) {
                        return k / 4 * 4 + first + k % 2 + k % 4 / 2 * width_;
                      }));
  };
  for (u32 half = 0; half < 2; ++half) {
    const LlvmValue even = interleave(quarter[0], quarter[1], 2 * half);
    const LlvmValue odd = interleave(quarter[2], quarter[3], 2 * half);
    set(id, 2 * half, from_memory(a.elem, join(even, odd, 0)));
    set(id, 2 * half + 1, from_memory(a.elem, join(even, odd, 2)));
  }
}

// Elements base, base + s, ... as s whole vectors. The last one is shifted back so that nothing
// behind the last element is touched.
void Lowering::load_strided(ValueId id, const Access& a) {
  const u32 stride = static_cast<u32>(shape(a.index).stride), size = size_bytes(a.elem);
  const LlvmType elem = b_.memory_type(a.elem);
  const LlvmValue from = affine_pointer(a);
  LlvmValue result = b_.undefined(Builder::vector(elem, width_));
  for (u32 chunk = 0; chunk < stride; ++chunk) {
    const u32 start = chunk * width_ - (chunk + 1 == stride ? stride - 1 : 0);
    const LlvmValue v =
        load_vector(elem, b_.element(elem, from, b_.integer(b_.i64, start)), width_, nullptr, size);
    std::vector<u32> lanes(width_);
    for (u32 l = 0; l < width_; ++l) {
      const u32 offset = l * stride;
      const bool here = chunk + 1 == stride ? offset >= chunk * width_ : offset / width_ == chunk;
      lanes[l] = here ? width_ + offset - start : l;
    }
    result = b_.shuffle(result, v, lanes);
  }
  set(id, 0, from_memory(a.elem, result));
}

void Lowering::gather(ValueId id, const Access& a) {
  const u32 size = size_bytes(a.elem);
  const LlvmType type = Builder::vector(b_.memory_type(a.elem), width_);
  for (u32 part = 0; part < a.lanes; ++part) {
    if (is_spread(a)) {
      LlvmValue v = b_.undefined(type);
      for (u32 l = 0; l < width_; ++l) {
        v = b_.insert(v, b_.load(Builder::elem_of(type), spread_pointer(a, l, part), size),
                      b_.integer(b_.i64, l));
      }
      set(id, part, from_memory(a.elem, v));
      continue;
    }
    LlvmValue from = lane_pointers(a, part), mask = mask_or_all();
    if (mask_ && !has_masked_lanes(size)) {
      from = instead_of_idle(from);
      mask = b_.all_ones(Builder::type_of(mask));
    }
    const LlvmValue v = b_.call("llvm.masked.gather", {type, Builder::type_of(from)},
                                {from, b_.integer(b_.i32, size), mask, b_.zero(type)});
    set(id, part, from_memory(a.elem, v));
  }
}

// Lanes at a constant distance: an access per lane at a constant offset from one pointer beats the
// gather and scatter instructions of the CPUs at hand by two.
bool Lowering::is_spread(const Access& a) const {
  return a.base && shape(a.index).affine && !mask_;
}

LlvmValue Lowering::spread_pointer(const Access& a, u32 lane, u32 component) {
  const u64 offset = static_cast<u64>(shape(a.index).stride) * lane + component;
  return b_.element(b_.memory_type(a.elem), affine_pointer(a), b_.integer(b_.i64, offset));
}

// What the target does not mask becomes a branch per lane in LLVM. There the idle lanes repeat what
// the first active lane does.
bool Lowering::has_masked_lanes(u32 size) const { return size >= 4 && target_.has("avx512f"); }
bool Lowering::has_masked_vectors(u32 size) const {
  return size >= 4 ? target_.has("avx") : target_.has("avx512bw") && target_.has("avx512vl");
}

LlvmValue Lowering::instead_of_idle(LlvmValue v) {
  return b_.select(mask_, v, b_.splat(b_.extract(v, first_active()), width_));
}

LlvmValue Lowering::lane_pointers(const Access& a, u32 component) {
  LlvmValue index = wide_lanes(a.index);
  if (component) index = b_.add(index, b_.integer(Builder::type_of(index), component));
  const LlvmValue base =
      a.base ? a.base
             : LLVMBuildIntToPtr(b_.at, vector(a.address), Builder::vector(b_.ptr, width_), "");
  return b_.element(b_.memory_type(a.elem), base, index);
}

LlvmValue Lowering::affine_pointer(const Access& a) {
  return b_.element(b_.memory_type(a.elem), a.base, wide_index(a.index));
}

LlvmValue Lowering::load_vector(LlvmType elem, LlvmValue from, u32 n, LlvmValue mask, u32 align) {
  const LlvmType type = Builder::vector(elem, n);
  if (!mask) return b_.load(type, from, align);
  return b_.call("llvm.masked.load", {type, b_.ptr},
                 {from, b_.integer(b_.i32, align), mask, b_.zero(type)});
}

void Lowering::store_vector(LlvmValue v, LlvmValue to, LlvmValue mask, u32 align) {
  if (!mask) return b_.store(v, to, align);
  b_.call("llvm.masked.store", {Builder::type_of(v), b_.ptr},
          {v, to, b_.integer(b_.i32, align), mask});
}

// <m0, m0, m1, m1, ...>
LlvmValue Lowering::repeated(LlvmValue mask, u32 times) {
  std::vector<u32> lanes(width_ * times);
  for (u32 i = 0; i < lanes.size(); ++i) lanes[i] = i / times;
  return b_.shuffle(mask, lanes);
}

LlvmValue Lowering::reversed(LlvmValue v) {
  std::vector<u32> lanes(width_);
  for (u32 l = 0; l < width_; ++l) lanes[l] = width_ - 1 - l;
  return b_.shuffle(v, lanes);
}

void Lowering::store(ValueId id) {
  const Instr& instr = k_[id];
  Access a = access(instr);
  const ValueId value = instr.args.back();
  a.lanes = k_[value].type.lanes;
  const kernel::LaneShape& index = shape(a.index);
  const u32 size = size_bytes(a.elem);
  const LlvmType elem = b_.memory_type(a.elem);
  if (a.base && index.uniform()) {
    // One cell for all lanes: the last active one wins.
    for (u32 part = 0; part < a.lanes; ++part) {
      LlvmValue v = nullptr;
      if (shape(value).uniform()) {
        v = scalar(value, part);
      } else {
        v = b_.extract(vector(value, part), mask_ ? last_active() : b_.integer(b_.i64, width_ - 1));
      }
      const LlvmValue to =
          b_.element(elem, a.base, b_.add(wide_index(a.index), b_.integer(b_.i64, part)));
      b_.store(to_memory(a.elem, v), to, size);
    }
    return;
  }
  const bool whole = a.base && index.affine && (!mask_ || has_masked_vectors(size));
  if (whole && (index.stride == a.lanes || (index.stride == -1 && a.lanes == 1))) {
    return store_contiguous(instr, a, value);
  }
  if (a.lanes == 4 && is_spread(a) && width_ >= 4) return store_rows(a, value);
  scatter(a, value);
}

// The reverse of load_rows: blocks of four lanes by four elements are transposed, then every lane's
// elements are one short vector.
void Lowering::store_rows(const Access& a, ValueId value) {
  std::vector<LlvmValue> part;
  for (u32 i = 0; i < 4; ++i) part.push_back(to_memory(a.elem, vector(value, i)));
  std::vector<u32> order(width_);
  const auto shuffled = [&](LlvmValue x, LlvmValue y, const auto& place) {
    for (u32 k = 0; k < width_; ++k) order[k] = k / 4 * 4 + place(k % 4);
    return b_.shuffle(x, y, order);
  };
  for (u32 r = 0; r < 4; ++r) {
    // Lane r of every block: its elements 0 and 1, its elements 2 and 3, then both side by side.
    const u32 pair = r / 2 * 2;
    const auto lanes = [&](u32 k) { return pair + k / 2 + k % 2 * width_; };
    const LlvmValue low = shuffled(part[0], part[1], lanes);
    const LlvmValue high = shuffled(part[2], part[3], lanes);
    const u32 from = r % 2 * 2;
    const LlvmValue rows =
        shuffled(low, high, [&](u32 k) { return from + k % 2 + k / 2 * width_; });
    for (u32 l = r; l < width_; l += 4) {
      const u32 first = l / 4 * 4;
      const u32 row[4] = {first, first + 1, first + 2, first + 3};
      b_.store(b_.shuffle(rows, row), spread_pointer(a, l, 0), size_bytes(a.elem));
    }
  }
}

void Lowering::store_contiguous(const Instr& instr, const Access& a, ValueId value) {
  const LlvmType elem = b_.memory_type(a.elem);
  const u32 size = size_bytes(a.elem);
  LlvmValue to = affine_pointer(a);
  LlvmValue mask = mask_;
  if (a.lanes == 1) {
    LlvmValue v = to_memory(a.elem, vector(value));
    if (shape(a.index).stride == -1) {
      v = reversed(v);
      if (mask) mask = reversed(mask);
      to = b_.element(elem, to, b_.integer(b_.i64, 1 - static_cast<u64>(width_)));
    }
    const bool whole_vector = (width_ * size) % 16 == 0 && shape(a.index).stride == 1;
    if (instr.imm == 1 && !mask && whole_vector) return b_.store_streaming(v, to, width_ * size);
    return store_vector(v, to, mask, size);
  }
  // Interleaves the components: pairs of vectors become vectors of twice the length, component
  // order kept by picking from the concatenation at the end.
  std::vector<LlvmValue> level;
  for (u32 part = 0; part < a.lanes; ++part)
    level.push_back(to_memory(a.elem, vector(value, part)));
  u32 n = width_;
  while (level.size() > 1) {
    std::vector<u32> all(2 * n);
    for (u32 i = 0; i < 2 * n; ++i) all[i] = i;
    std::vector<LlvmValue> next;
    for (size_t i = 0; i < level.size(); i += 2)
      next.push_back(b_.shuffle(level[i], level[i + 1], all));
    level = std::move(next);
    n *= 2;
  }
  std::vector<u32> order(n);
  for (u32 i = 0; i < n; ++i) order[i] = i % a.lanes * width_ + i / a.lanes;
  if (mask) mask = repeated(mask, a.lanes);
  store_vector(b_.shuffle(level[0], order), to, mask, size);
}

void Lowering::scatter(const Access& a, ValueId value) {
  const u32 size = size_bytes(a.elem);
  for (u32 part = 0; part < a.lanes; ++part) {
    LlvmValue v = to_memory(a.elem, vector(value, part));
    if (is_spread(a)) {
      for (u32 l = 0; l < width_; ++l) b_.store(b_.extract(v, l), spread_pointer(a, l, part), size);
      continue;
    }
    LlvmValue to = lane_pointers(a, part), mask = mask_or_all();
    if (mask_ && !has_masked_lanes(size)) {
      to = instead_of_idle(to);
      v = instead_of_idle(v);
      mask = b_.all_ones(Builder::type_of(mask));
    }
    b_.call("llvm.masked.scatter", {Builder::type_of(v), Builder::type_of(to)},
            {v, to, b_.integer(b_.i32, size), mask});
  }
}

// The value of an element as it lies in memory.
LlvmValue Lowering::from_memory(Scalar elem, LlvmValue v) {
  switch (elem) {
    case Scalar::Bool: return b_.icmp(LLVMIntNE, v, b_.zero(Builder::type_of(v)));
    case Scalar::U8: return b_.zext(v, b_.i32);
    case Scalar::F16: return half_to_float(v);
    case Scalar::BF16: {
      const LlvmValue wide = b_.zext(v, b_.i32);
      const LlvmValue high = LLVMBuildShl(b_.at, wide, b_.integer(Builder::type_of(wide), 16), "");
      return b_.bitcast(high, Builder::like(b_.f32, v));
    }
    default: return v;
  }
}

LlvmValue Lowering::to_memory(Scalar elem, LlvmValue v) {
  switch (elem) {
    case Scalar::Bool: return b_.zext(v, b_.i8);
    case Scalar::U8: return b_.trunc(v, b_.i8);
    case Scalar::F16: return float_to_half(v);
    case Scalar::BF16: return float_to_bfloat(v);
    default: return v;
  }
}

void Lowering::var_load(ValueId id) {
  const Instr& instr = k_[id];
  const auto& slots = vars_[instr.slot];
  for (u32 part = 0; part < slots.size(); ++part) {
    const LlvmType type = LLVMGetAllocatedType(slots[part]);
    set(id, part, LLVMBuildLoad2(b_.at, type, slots[part], ""));
  }
}

void Lowering::var_store(const Instr& instr) {
  const ValueId value = instr.args[0];
  const auto& slots = vars_[instr.slot];
  const bool one = uniformity_.var(instr.slot).affine;
  for (u32 part = 0; part < slots.size(); ++part) {
    LlvmValue v = operand(value, part, one);
    if (!one && mask_ && home_level_[instr.slot] != level_) {
      const LlvmValue old =
          LLVMBuildLoad2(b_.at, LLVMGetAllocatedType(slots[part]), slots[part], "");
      v = b_.select(mask_, v, old);
    }
    LLVMBuildStore(b_.at, v, slots[part]);
  }
}

}  // namespace oa::codegen
