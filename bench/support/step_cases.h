// The models whose training steps are measured, the same as in peers/torch_models.py.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "oa/ml/module.h"

namespace bench {

struct StepCase {
  const char* name;
  oa::i64 batch, context;
  // Floating-point operations of a step: 6 per weight of a product and row, and attention's.
  double operations;
  std::shared_ptr<oa::ml::Module> (*make)(const oa::Engine&);

  // Token i is 7 i modulo the vocabulary, and its target the next one.
  std::vector<oa::u32> tokens() const;
  std::vector<oa::u32> targets() const;
};

std::span<const StepCase> step_cases();
StepCase large_step_case();  // for graphics cards

}  // namespace bench
