// SPDX-License-Identifier: Apache-2.0
// The memory plan: where each value of a program lies in one arena, from the lives of the values.
// The peak is exact and known before anything runs.
//
// A view shares its base's memory and lengthens its life. An op that declares so may write over an
// input that is read for the last time, of the same type. Scratch lives during its node. Values
// outside the arena (parameters, the batch, gradients) are never written over.
//
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_MEMORY_H_
#define LOCKSTEP_ENGINE_PASSES_MEMORY_H_

#include <map>
#include <string>
#include <vector>

#include "engine/cpu/kernel.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

struct MemoryOptions {
  bool reuse = true;     // false: every buffer has memory of its own
  bool in_place = true;  // false: no op writes over its input
};

// One stretch of the arena, alive from the start of node `first` to the end of node `last`.
struct ArenaBuffer {
  size_t bytes = 0;
  size_t offset = 0;
  int first = 0;
  int last = 0;
  std::string what;  // "%3", "%3 scratch"
};

struct MemoryPlan {
  std::vector<KernelOperands> operands;  // for each node: its inputs, outputs, scratch
  std::vector<ArenaBuffer> buffers;
  size_t arena_bytes = 0;  // the high-water mark; a multiple of 64
  std::string ToText() const;
};

// `fixed` are the values outside the arena; every leaf is one of them.
MemoryPlan PlanMemory(const Graph& graph, const std::map<Value, Storage>& fixed,
                      const CpuTarget& target, const MemoryOptions& options);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_MEMORY_H_
