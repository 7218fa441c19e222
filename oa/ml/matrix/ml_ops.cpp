#include "oa/ml/matrix/ml_ops.h"

namespace oa::ml::matrix {

std::vector<const graph::OpDef*> ml_ops() {
  std::vector<const graph::OpDef*> all;
  for (const OpList family : {
           activation_ops(),
           attention_ops(),
           cross_entropy_ops(),
           loss_ops(),
           norm_ops(),
           recurrent_ops(),
       }) {
    all.insert(all.end(), family.begin(), family.end());
  }
  return all;
}

}  // namespace oa::ml::matrix
