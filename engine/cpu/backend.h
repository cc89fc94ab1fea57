// SPDX-License-Identifier: Apache-2.0
// The CPU as planning sees it. Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CPU_BACKEND_H_
#define LOCKSTEP_ENGINE_CPU_BACKEND_H_

#include "engine/cpu/kernel.h"
#include "engine/graph/backend.h"

namespace lockstep::engine {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const CpuTargets& targets) : targets_(targets) {}
  size_t ScratchBytes(const Graph& graph, const Node& node) const override;
  std::optional<PackedInput> Packs(const Graph& graph, const Node& node) const override;
  bool RoundsWeight(const Graph& graph, const Node& node) const override;

 private:
  const CpuTargets targets_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CPU_BACKEND_H_
