// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/backend.h"

#include "engine/cuda/attention_engine.h"
#include "engine/cuda/kernels.h"
#include "engine/passes/launch_groups.h"

namespace lockstep::engine {

size_t CudaBackend::ScratchBytes(const Graph& graph, const Node& node) const {
  const CudaKernelDef& kernel = CudaKernelOf(*node.op);
  return kernel.scratch_bytes == nullptr ? 0 : kernel.scratch_bytes(graph, node);
}

bool CudaBackend::RoundsBias(const Graph& graph, const Node& node) const {
  const CudaKernelDef& kernel = CudaKernelOf(*node.op);
  return kernel.rounds_bias != nullptr && kernel.rounds_bias(graph, node);
}

bool CudaBackend::KeepsDropout(const Graph& graph, const Node& node) const {
  return cuda::KeepsDropout(graph, node);
}

std::vector<int> CudaBackend::Groups(const Graph& graph) const { return LaunchGroups(graph); }

}  // namespace lockstep::engine
