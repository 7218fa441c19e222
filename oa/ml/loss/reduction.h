// What becomes of the losses of single elements or rows.
#pragma once

#include "oa/core/types.h"

namespace oa::ml::loss {

enum class Reduction : u8 { Mean, Sum, None };

}  // namespace oa::ml::loss
