// SPDX-License-Identifier: Apache-2.0
// The memory plan: where each value of a program lies in one arena, from the lives of the values.
// The peak is exact and known before anything runs.
//
// A view shares its base's memory and lengthens its life. An op that declares so may write over an
// input that is read for the last time, of the same type. Scratch lives during its node. Values
// outside the arena (parameters, the batch, gradients) are never written over.
//
// With `keep_constants`, for programs whose parameters stay the same from run to run, the work has
// two parts. Once for the parameters: nodes that depend on parameters alone, and what kernels make
// of such inputs (Backend::Packs), both in the order of the nodes. In each run: the other nodes.
// What the runs read of the first part lives for ever; the rest of it shares its memory with them.
// A program that shares its arena with others does the first part again after one of these has run.
//
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_MEMORY_H_
#define LOCKSTEP_ENGINE_PASSES_MEMORY_H_

#include <map>
#include <string>
#include <vector>

#include "engine/graph/backend.h"
#include "engine/graph/graph.h"
#include "engine/graph/storage.h"

namespace lockstep::engine {

struct MemoryOptions {
  bool reuse = true;     // false: every buffer has memory of its own
  bool in_place = true;  // false: no op writes over its input
  bool keep_constants = false;
};

// One stretch of the arena, alive from `first` to `last` (MemoryPlan::TimeOf).
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
  // Nodes that run once for the parameters; empty: none does.
  std::vector<bool> once;
  // When the first node of each run would begin: after what is done once.
  int runs_begin = 0;

  // Returns whether node `id` is one of `once`.
  bool RunsOnce(int id) const { return !once.empty() && once[static_cast<size_t>(id)]; }
  // Returns whether the kernel of node `id` has an input packed once, after the nodes before it
  // that run once.
  bool Packs(int id) const { return operands[static_cast<size_t>(id)].packed.has_value(); }
  // When node `id` runs.
  int TimeOf(int id) const { return RunsOnce(id) ? id : runs_begin + id; }
  std::string ToText() const;
};

// `fixed` are the values outside the arena; every leaf is one of them. `backend` says what the
// kernels need.
MemoryPlan PlanMemory(const Graph& graph, const std::map<Value, Storage>& fixed,
                      const Backend& backend, const MemoryOptions& options);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_MEMORY_H_
