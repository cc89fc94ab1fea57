// SPDX-License-Identifier: Apache-2.0
// Where a program of a plan for inference leaves its logits. Thread-safety: a plain function.
#ifndef LOCKSTEP_ENGINE_EXEC_LOGITS_H_
#define LOCKSTEP_ENGINE_EXEC_LOGITS_H_

#include <cstdint>

#include "engine/exec/plan.h"

namespace lockstep::engine {

struct Logits {
  Storage storage;
  int64_t elements = 0;
};

// REQUIRES: the program has the output kLogitsOutput.
Logits LogitsOf(const Program& program);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_LOGITS_H_
