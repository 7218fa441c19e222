#include "oa/kernel/check.h"

#include "oa/core/error.h"
#include "oa/kernel/hash.h"
#include "oa/kernel/parse.h"
#include "oa/kernel/print.h"
#include "oa/kernel/verify.h"

namespace oa::kernel {

void run_checked(const Kernel& kernel, std::span<const u64> args,
                 std::span<const BufferView> buffers, u32 groups, const InterpretOptions& options) {
  verify(kernel);
  if (hash(parse(print(kernel))) != hash(kernel)) {
    fail(ErrorKind::Internal, "kernel::check", "{}: its text does not parse back", kernel.name);
  }
  interpret(kernel, args, buffers, groups, options);
}

}  // namespace oa::kernel
