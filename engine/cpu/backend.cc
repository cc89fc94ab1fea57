// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/backend.h"

#include "engine/cpu/converting_kernel.h"
#include "engine/cpu/kernels.h"

namespace lockstep::engine {

size_t CpuBackend::ScratchBytes(const Graph& graph, const Node& node) const {
  return KernelScratchBytes(graph, node, targets_);
}

std::optional<PackedInput> CpuBackend::Packs(const Graph& graph, const Node& node) const {
  const size_t bytes = KernelPackedBytes(graph, node, targets_);
  if (bytes == 0) return std::nullopt;
  const CpuKernelDef& kernel = CpuKernelOf(*node.op);
  return PackedInput{static_cast<size_t>(kernel.packed_input), bytes, !kernel.packs_only_once};
}

bool CpuBackend::RoundsWeight(const Graph& graph, const Node& node) const {
  const CpuKernelDef& kernel = CpuKernelOf(*node.op);
  return kernel.rounds_weight != nullptr && kernel.rounds_weight(graph, node);
}

}  // namespace lockstep::engine
