// Reports of a compiled program as JSON text, for tools and for comparing two builds. Nothing in
// them is an address, a time or a path, so equal programs give equal text. They throw
// FailedPrecondition for a program whose evidence was dropped.
#pragma once

#include <string>
#include <string_view>

#include "oa/graph/evidence.h"
#include "oa/graph/program.h"

namespace oa::graph {

const Evidence& evidence_of(const Program& program);
// "oa.semantic_graph.v2": operations and values as they were recorded.
std::string semantic_report_json(const Program& program, std::string_view name);
// "oa.execution_graph.v3": dispatches in order, what each reads and writes, and the memory plan.
std::string execution_report_json(const Program& program, std::string_view name);
// "oa.training_compilation.v2": the eleven stages, partitions and why there are not fewer, how
// operations became dispatches, and who shares memory.
std::string compilation_report_json(const Program& program, std::string_view name);

}  // namespace oa::graph
