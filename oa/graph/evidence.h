// What the compile stages decided about one program, as plain data: groups and what kept others out
// of them, chosen kernels, where every value lies, and which dispatch waits for which. Collected
// once at the end of a compile that asks for it; running a program never looks here.
#pragma once

#include "oa/graph/compile.h"
#include "oa/graph/semantic_graph.h"

namespace oa::graph {

std::string_view token(Obstacle obstacle);  // "other_size", ...
std::string_view token(Group::Kind kind);   // "pointwise", ...
std::string_view token(Hazard::Kind kind);  // "read_after_write", ...

struct Evidence {
  static constexpr u32 kNone = ~0u;

  struct GroupInfo {
    Group::Kind kind = Group::Kind::Pointwise;
    Shape domain;
    std::vector<u32> axes;         // reduced ones
    std::vector<std::string> ops;  // members, in order; movement costs nothing and is no member
    std::vector<u32> operations;   // of the recorded graph, ascending
    std::vector<u32> outputs;      // resources
  };

  // A value that one group makes and another reads from memory.
  struct Boundary {
    u32 from = 0, to = 0;  // groups
    u32 resource = kNone;
    std::string maker, reader;  // ops
    Obstacle obstacle = Obstacle::None;
    std::string reason;  // a sentence
  };

  struct Resource {
    enum class Kind : u8 { Input, Result, Transient, Scratch };
    std::string name;  // "%3" or "embed.weight" for inputs, "gelu.12" for values, "scratch 0"
    Kind kind = Kind::Input;
    u64 bytes = 0;
    u64 offset = 0;                   // in the arena, of Transient and Scratch
    u32 first = kNone, last = kNone;  // dispatches that touch it; none of unused ones
    bool parameter = false;           // Input: of a model
    bool assigned = false;            // Input: the program replaces its elements
    u32 reuses = kNone;               // the resource whose memory it takes over in place
  };

  struct DispatchInfo {
    std::string label;  // names of the ops
    std::string kernel;
    std::string choice;  // why this kernel
    std::string trial;   // times of the kernels that it was chosen from; not part of reports
    u32 workgroups = 0, width = 0;
    u32 instructions = 0;            // of the kernel, simplified
    std::vector<u32> groups;         // none: a copy
    std::vector<u32> operations;     // of the recorded graph, ascending
    std::vector<u32> reads, writes;  // resources
    f64 flops = 0;                   // estimate; products exactly
    // What multiplies: F16 or BF16 in matrix units, so many products for each of `flops`; F32:
    // no units.
    kernel::Scalar units = kernel::Scalar::F32;
    u32 unit_products = 1;
    u64 bytes_read = 0, bytes_written = 0;  // each resource once
    u64 live_bytes = 0;                     // of the arena, while it runs
    bool barrier = false;
    Hazard::Kind hazard = Hazard::Kind::ReadAfterWrite;
    u32 waits_for = kNone;  // the first dispatch since the last barrier that it needs
    u32 hazard_resource = kNone;
  };

  struct Product {
    std::string op;
    u32 group = kNone;
    std::vector<u32> operations;  // of the recorded graph, ascending
    DType operands = DType::F32;
    Precision asked = Precision::F32, computed = Precision::F32;
    std::string how;
  };

  struct Refusal {  // a group that no generator could write; fusion started over
    std::string op;
    std::string reason;
  };

  std::string device;
  SemanticGraph semantic;
  std::vector<std::vector<u32>> operation_dispatches;  // per recorded operation
  std::vector<GroupInfo> groups;
  std::vector<Boundary> boundaries;
  std::vector<Product> products;  // in the order of the graph
  std::vector<Refusal> refusals;
  std::vector<Resource> resources;
  std::vector<DispatchInfo> dispatches;
  u64 arena_bytes = 0;      // what the arena takes
  u64 transient_bytes = 0;  // what its values would take without reuse
};

Evidence collect_evidence(const Compilation& c);

}  // namespace oa::graph
