#include "oa/matrix/all_ops.h"

#include "oa/graph/reshape.h"

namespace oa::matrix {

OpList graph_ops() { return graph::op_list<graph::Reshape, graph::Copy>(); }

std::vector<const graph::OpDef*> all_ops() {
  constexpr OpList (*families[])() = {graph_ops,    elementwise_ops, transcendental_ops, reduce_ops,
                                      movement_ops, create_ops,      matmul_ops,         index_ops,
                                      scatter_ops,  random_ops,      scan_ops,           sort_ops,
                                      moe_ops};
  std::vector<const graph::OpDef*> list;
  for (const auto family : families) {
    const OpList ops = family();
    list.insert(list.end(), ops.begin(), ops.end());
  }
  return list;
}

}  // namespace oa::matrix
