// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/logits.h"

#include <algorithm>

#include "common/check.h"

namespace lockstep::engine {

Logits LogitsOf(const Program& program) {
  const auto& outputs = program.graph.outputs();
  const auto logits = std::find_if(outputs.begin(), outputs.end(),
                                   [](const auto& out) { return out.first == kLogitsOutput; });
  LS_CHECK(logits != outputs.end());
  const Value value = logits->second;
  return {program.memory.operands[static_cast<size_t>(value.node)]
              .outputs[static_cast<size_t>(value.output)],
          program.graph.type(value).elements()};
}

}  // namespace lockstep::engine
