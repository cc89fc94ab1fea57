// SPDX-License-Identifier: Apache-2.0
// One node on memory of its own, which is checked to be all that it writes.
#ifndef LOCKSTEP_TESTS_CONFORMANCE_OPS_RUN_NODE_H_
#define LOCKSTEP_TESTS_CONFORMANCE_OPS_RUN_NODE_H_

#include <cstddef>
#include <vector>

#include "engine/cpu/isa.h"
#include "engine/graph/graph.h"
#include "tests/conformance/ops/made_case.h"

namespace lockstep::engine {

struct RunOptions {
  Isa isa = Isa::kPortable;
  int threads = 1;
  size_t shift = 0;  // of all operands, elements off their alignment
  bool accumulate = false;
  bool bf16_pairs = false;
};

// Runs one node on its own buffers. Outputs start as 1 when they are added to.
std::vector<Doubles> RunNode(const Graph& graph, const Node& node,
                             const std::vector<Doubles>& inputs, const RunOptions& options);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_CONFORMANCE_OPS_RUN_NODE_H_
