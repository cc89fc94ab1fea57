// SPDX-License-Identifier: Apache-2.0
// A GPU as planning sees it. Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_CUDA_BACKEND_H_
#define LOCKSTEP_ENGINE_CUDA_BACKEND_H_

#include "engine/graph/backend.h"

namespace lockstep::engine {

class CudaBackend : public Backend {
 public:
  size_t ScratchBytes(const Graph& graph, const Node& node) const override;
  bool RoundsBias(const Graph& graph, const Node& node) const override;
  bool KeepsDropout(const Graph& graph, const Node& node) const override;
  std::vector<int> Groups(const Graph& graph) const override;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_BACKEND_H_
