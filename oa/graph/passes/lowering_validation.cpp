// Stage 8. Verifies and simplifies every kernel, and checks it against the device's limits. Stands
// before memory is planned: nothing after this stage looks inside a kernel.
#include "oa/graph/compile.h"
#include "oa/kernel/simplify.h"
#include "oa/kernel/verify.h"

namespace oa::graph {

void lowering_validation(Compilation& c, StageRecord& record) {
  u64 before = 0, after = 0;
  for (Launch& launch : c.launches.list) {
    OA_CHECK(launch.args.size() == launch.kernel.params);
    const kernel::VerifyLimits limits{.shared_bytes = c.target.shared_bytes};
    kernel::verify(launch.kernel, limits);
    before += launch.kernel.instrs.size();
    launch.kernel = kernel::simplify(launch.kernel);
    after += launch.kernel.instrs.size();
  }
  record.input_count = before;
  record.output_count = after;
  record.state = c.launches.list.empty() ? StageState::Inherited
                 : before != after       ? StageState::Applied
                                         : StageState::Analyzed;
  record.reason = fmt::format("{} kernels verified; instructions {} to {}", c.launches.list.size(),
                              before, after);
}

}  // namespace oa::graph
