// SPDX-License-Identifier: Apache-2.0
// Attention and its gradients as a graph of cuDNN: products, a scale, a causal mask and softmax,
// which the library's engines know as one pattern (cuDNN's guide, "Graph patterns", fused
// attention) and run without storing the probabilities. q, k, v and their gradients are 16-bit
// matrices whose heads lie side by side in rows of any stride; the logarithms of the sums are fp32
// [batch, heads, length].
// Thread-safety: its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_ATTENTION_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cuda/cudnn_graph.h"
#include "engine/cuda/cudnn_plan.h"
#include "engine/cuda/kernels/types.h"

namespace lockstep::engine::cuda {

// The first version with backward passes that give the same bits in each run on all GPUs, for
// lengths that are no multiple of 128 too.
inline constexpr size_t kCudnnForAttention = 91800;

struct CudnnAttentionShape {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t length = 0;
  int64_t depth = 0;   // of a head: a multiple of 8, at most 128
  int64_t stride = 0;  // of q, k, v and their gradients, in elements; y and dy are dense
  Type type = Type::kBF16;
  float scale = 1;
  bool causal = false;
  bool backward = false;
};

class CudnnAttention {
 public:
  // `backend` outlives it. Errors: Internal with what the library refuses.
  static absl::StatusOr<std::shared_ptr<const CudnnAttention>> Make(
      const CudnnBackend* backend, const CudnnPlace& place, const CudnnAttentionShape& shape);

  const CudnnGraph& graph() const { return graph_; }

  struct Operands {
    const void* q = nullptr;
    const void* k = nullptr;
    const void* v = nullptr;
    void* y = nullptr;         // backward: read
    void* log_sums = nullptr;  // backward: read
    // Backward.
    const void* dy = nullptr;
    void* dq = nullptr;
    void* dk = nullptr;
    void* dv = nullptr;
    float* delta = nullptr;  // scratch [batch, heads, length]
  };
  // On the stream of `handle`.
  CudnnStatus Run(CudnnObject handle, const CudnnPlan& plan, const Operands& operands,
                  void* workspace) const;

 private:
  CudnnAttention(const CudnnBackend* backend, const CudnnAttentionShape& shape)
      : shape_(shape), graph_(backend) {}
  void DescribeForward();
  void DescribeBackward();
  CudnnGraph::Tensor Matrix(int64_t id, int64_t stride);
  CudnnGraph::Tensor TransposedMatrix(int64_t id, int64_t stride);
  CudnnGraph::Tensor RowValues(int64_t id);
  CudnnGraph::Tensor Masked(const CudnnGraph::Tensor& scores);

  const CudnnAttentionShape shape_;
  CudnnGraph graph_;
  // What runs are given for scalars.
  float scale_ = 1;
  float one_ = 1;
  float minus_infinity_ = 0;
};

// Ways that the library has and does not propose: on sm_100 and 103, `compute`, its backward pass
// that gives the same bits in each run without room for the gradients of the scores. As NVIDIA's
// cudnn-frontend 1.23 asks for it, versions from 9.18 to 9.22.
std::vector<CudnnAlgorithm> UnproposedAttention(const CudnnAttentionShape& shape, int compute,
                                                size_t version);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_ATTENTION_H_
