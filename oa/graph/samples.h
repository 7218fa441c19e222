// What an op is tested with: every op struct states its own samples, and one test drives them all.
//
//   static void samples(Samples& s) {
//     for (DType t : kFloats) s.call({{{3, 5}, t}}, Attrs{.axis = 1});
//     s.reject({{{}}}, Attrs{.axis = 0}, "my_op: operand 0 has no axes, got [], expected one");
//   }
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oa/core/dtype.h"
#include "oa/core/shape.h"

namespace oa::graph {

class AttrsBox;
template <class T>
class TypedAttrs;

// How the elements of a sample's operand are drawn.
struct SampleOperand {
  Shape shape;
  DType dtype = DType::F32;
  f64 low = -2;  // numbers are uniform in [low, high]; unsigned ones start at 0 at least
  f64 high = 2;
  // Mixes in NaN, infinities, zeros of both signs, denormals and the ends of the type's range.
  bool special = false;
};

struct Sample {
  std::vector<SampleOperand> operands;
  std::shared_ptr<const AttrsBox> attrs;
  std::string
      rejection;  // the exact text of the error that the call must raise; empty: it is legal
};

class Samples {
 public:
  template <class Attrs>
  void call(std::vector<SampleOperand> operands, Attrs attrs) {
    list_.push_back({std::move(operands), box(std::move(attrs)), {}});
  }
  template <class Attrs>
  void reject(std::vector<SampleOperand> operands, Attrs attrs, std::string text) {
    list_.push_back({std::move(operands), box(std::move(attrs)), std::move(text)});
  }
  const std::vector<Sample>& list() const { return list_; }

 private:
  template <class Attrs>
  static std::shared_ptr<const AttrsBox> box(Attrs attrs) {
    return std::make_shared<TypedAttrs<Attrs>>(std::move(attrs));
  }
  std::vector<Sample> list_;
};

inline constexpr DType kFloats[] = {DType::F32, DType::F16, DType::BF16, DType::F64};
inline constexpr DType kIntegers[] = {DType::I32, DType::U32, DType::U8};
inline constexpr DType kNumbers[] = {DType::F32, DType::F16, DType::BF16, DType::F64,
                                     DType::I32, DType::U32, DType::U8};
inline constexpr DType kSigned[] = {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32};
inline constexpr DType kAll[] = {DType::F32, DType::F16, DType::BF16, DType::F64,
                                 DType::I32, DType::U32, DType::U8,   DType::Bool};

}  // namespace oa::graph
