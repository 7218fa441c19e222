// How a product on the CPU is cut into tiles and workgroups, and the packing of its operands.
#pragma once

#include "oa/graph/codegen/contract.h"

namespace oa::graph {

// Where the tiles find an operand.
enum class Site : u8 {
  Direct,  // in memory as it lies
  Task,    // packed by each workgroup into memory of its own
  Launch,  // packed into a temporary by a launch before
};

// In words; `why` as in CpuTiling.
std::string describe(const char* operand, Site site, const char* why);

struct CpuTiling {
  u32 width = 0;              // lanes of a gang, along n
  u32 rows = 1, gangs = 1;    // of a register tile
  i64 panels = 0, bands = 0;  // tiles along n, and along the rows of a batch
  Site a = Site::Direct, b = Site::Direct;
  // The bands of a batch are dealt evenly to so many workgroups, at most task_bands to each, of one
  // panel or of all.
  i64 blocks = 1, task_panels = 1, task_bands = 1;
  i64 a_stride = 0, b_stride = 0;       // Task: elements from one step of k to the next
  i64 slices = 1;                       // of the sum over k
  const char *why_a = "", *why_b = "";  // why an operand is packed or not

  i64 panel_columns() const { return static_cast<i64>(gangs) * width; }
};

// Steps of the outermost loop axis of k.
struct PackRange {
  kernel::Value begin, end;
};

// In a traced kernel: copies B of a batch into cells[k * b_stride + column], 0 past the last
// column.
void pack_columns(ContractNest& c, const CpuTiling& t, const kernel::Shared& cells,
                  const kernel::Value& batch, const PackRange& k);

// The same for rows [first, end) of A, into cells[k * a_stride + row - first]. `first` leaves a
// gang of rows behind it where the batch has as many.
void pack_rows(ContractNest& c, const CpuTiling& t, const kernel::Shared& cells,
               const kernel::Value& batch, const kernel::Value& first, const kernel::Value& end,
               const PackRange& k);

// A launch that copies operand `i` of all batches into panels (B) or bands (A); the temporary's
// number.
u32 pack_contract(ContractNest& c, const CpuTiling& t, u32 i, Launches& out);

// The kernel of matrix times vector. False where it does not fit the operands.
bool lower_contract_dot(ContractNest& c, Launches& out);

}  // namespace oa::graph
