// SPDX-License-Identifier: Apache-2.0
// A program of a plan on a GPU: its nodes' kernels, prepared once, launched one by one or as graphs
// that were recorded before. A program is cut into segments, after each of which something is known
// to be complete (a bucket of gradients); each segment is a graph of its own, and what goes to
// other devices stays outside of them. Thread-safety: confined to one thread.
#ifndef LOCKSTEP_ENGINE_CUDA_PROGRAM_RUNNER_H_
#define LOCKSTEP_ENGINE_CUDA_PROGRAM_RUNNER_H_

#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/device.h"
#include "engine/cuda/kernel.h"
#include "engine/exec/plan.h"

namespace lockstep::engine {

class CudaProgramRunner {
 public:
  // `ends` are the nodes after which a segment ends, ascending; the last segment ends with the
  // program. Errors: Internal, InvalidArgument of a kernel.
  static absl::StatusOr<CudaProgramRunner> Make(const Program* program, const CudaTarget& target,
                                                cuda::Device* device, std::vector<int> ends);
  ~CudaProgramRunner();
  CudaProgramRunner(CudaProgramRunner&&) = default;

  int segments() const { return static_cast<int>(ends_.size()); }
  // Launches segment `segment`. The first time its kernels run one by one, the second time they are
  // recorded, from then on the graph is launched; `variant` tells contexts apart that differ in
  // memory or in what is done. Errors: Internal.
  absl::Status RunSegment(int segment, int variant, const CudaContext& context);
  // Launches all segments' kernels one by one, for a recording that is not this program's alone.
  absl::Status RunAll(const CudaContext& context) const;
  // Launches node `id`, if it does anything. Errors: Internal.
  absl::Status RunNode(int id, const CudaContext& context) const;
  bool Runs(int id) const { return kernels_[static_cast<size_t>(id)] != nullptr; }
  int node_count() const { return static_cast<int>(kernels_.size()); }

 private:
  struct Segment {
    int runs = 0;
    cuda::Recording recording = nullptr;
  };

  CudaProgramRunner(const Program* program, cuda::Device* device)
      : program_(program), device_(device) {}
  // Before the first segment's nodes comes what the context asks for.
  absl::Status RunNodes(int segment, const CudaContext& context) const;
  // Launches the nodes that are done once for the parameters.
  absl::Status RunOnce(const CudaContext& context) const;
  // An error of a launch for node `id`.
  absl::Status Checked(cuda::Code code, int id) const;

  const Program* program_;
  cuda::Device* device_;
  std::vector<CudaKernel> kernels_;                  // null: a leaf or a view
  std::vector<int> last_;                            // of each node's group
  std::map<int, CudaKernel> groups_;                 // by first node
  std::vector<int> ends_;                            // the node after each segment's last
  std::map<std::pair<int, int>, Segment> recorded_;  // by segment and variant
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_PROGRAM_RUNNER_H_
