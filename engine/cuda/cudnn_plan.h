// SPDX-License-Identifier: Apache-2.0
// One of cuDNN's ways to run a graph: an engine with its knobs, prepared for one place. Engines
// whose results may change from run to run are never taken. Thread-safety: its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_PLAN_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cuda/cudnn_descriptor.h"
#include "engine/cuda/cudnn_graph.h"
#include "engine/cuda/tuning.h"

namespace lockstep::engine::cuda {

class CudnnPlan {
 public:
  // The ways that the library thinks quickest, best first, at most `most`; their workspaces are not
  // known yet. May be none: those that it has may give other bits in each run. REQUIRES:
  // graph.Finish. Errors: Internal with the library's first error when it names none, as it may
  // without its compiler (cudnn.h).
  static absl::StatusOr<std::vector<CudnnAlgorithm>> Propose(const CudnnGraph& graph, size_t most);

  // The way with the engine and knobs of `algorithm`; it may take seconds, as some are compiled.
  // Errors: Internal when the library has it no more, or its results may change from run to run.
  static absl::StatusOr<CudnnPlan> Make(const CudnnGraph& graph, const CudnnAlgorithm& algorithm);

  size_t workspace_bytes() const { return workspace_bytes_; }
  // Runs it on the stream of `handle`: `pointers` are those of the arrays and scalars `ids`.
  CudnnStatus Run(CudnnObject handle, const std::vector<int64_t>& ids,
                  const std::vector<void*>& pointers, void* workspace) const;

 private:
  explicit CudnnPlan(const CudnnBackend& backend)
      : backend_(&backend), plan_(backend, CudnnKind::kPlan) {}

  const CudnnBackend* backend_;
  CudnnDescriptor plan_;
  size_t workspace_bytes_ = 0;
};

// The ways of a graph, each prepared once: some are compiled, which takes a part of a second.
class CudnnWays {
 public:
  // With at most `room` bytes of workspace. `graph` outlives them.
  CudnnWays(const CudnnGraph& graph, size_t room) : graph_(graph), room_(room) {}

  // Those of `proposed` that can be prepared, with what workspace they need. May be none: there is
  // no room for them. Errors: Internal with the first refusal when the library refuses them all.
  absl::StatusOr<std::vector<CudnnAlgorithm>> Ready(std::vector<CudnnAlgorithm> proposed);
  // Errors: Internal when the library has it not; ResourceExhausted when it needs more workspace.
  absl::StatusOr<std::shared_ptr<const CudnnPlan>> Prepare(const CudnnAlgorithm& algorithm);

 private:
  const CudnnGraph& graph_;
  const size_t room_;
  std::vector<std::pair<CudnnAlgorithm, std::shared_ptr<const CudnnPlan>>> ready_;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_PLAN_H_
