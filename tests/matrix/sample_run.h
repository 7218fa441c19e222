// Running an op's sample on an engine, and judging the result.
#pragma once

#include <string>
#include <vector>

#include "oa/matrix/matrix.h"
#include "op_reference.h"

namespace oa::test {

using graph::OpDef;
using graph::Sample;
using graph::SampleOperand;

// Elements as they lie in memory, and back.
std::vector<u8> encode(DType t, const std::vector<f64>& v);
std::vector<f64> decode(DType t, const std::vector<u8>& bytes);
std::vector<u8> bits_of(const Matrix& m);
Matrix upload(const Engine& e, const Array& a);

// The operands of a sample, the same in every run.
std::vector<Array> operands_of(const OpDef& op, const Sample& s);

// Ops that keep every bit of an element, also of numbers that arithmetic may take for zero.
bool moves_elements(const OpDef& op);

// How an operand comes to the op: as elements in memory, or through ops that fusion turns into
// index maps.
enum class Form { Plain, Permuted, Sliced, Flipped, Joined };
inline constexpr Form kForms[] = {Form::Permuted, Form::Sliced, Form::Flipped, Form::Joined};

// The same elements by other means; values of rank 0 stay as they are.
Matrix in_form(const Engine& e, const Array& a, Form form);

std::vector<Matrix> apply(const Engine& e, const OpDef& op, const Sample& s,
                          const std::vector<Array>& operands, Form form = Form::Plain);

std::string describe(const OpDef& op, const Sample& s);
bool needs_f64(const Sample& s);  // among the operands

// The op's meaning from its reference; without one, what the interpreter makes of it unfused, so
// that every other way must agree.
Expected expected_of(const OpDef& op, const Sample& s, const std::vector<Array>& operands);

// Empty if the result is right, else what is wrong with it.
std::string judge(const Expected& e, const Matrix& got, bool flushes_denormals = false);

}  // namespace oa::test
