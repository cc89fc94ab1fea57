// SPDX-License-Identifier: Apache-2.0
// Operations as a graph that cuDNN fuses: tensors of four extents, products of their last two,
// convolutions, arithmetic by element, sums over the last extent. Sums and arithmetic are fp32, and
// so is what lies between two operations unless it is said otherwise. Thread-safety: one thread at
// a time.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_GRAPH_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_GRAPH_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/cuda/cudnn_descriptor.h"
#include "engine/cuda/kernels/types.h"
#include "engine/ops/conv_geometry.h"

namespace lockstep::engine::cuda {

// Where a graph is to run: a handle's GPU, or, to see what the library would do there, one that is
// described by a descriptor of kDeviceProperties.
struct CudnnPlace {
  CudnnObject handle = nullptr;
  CudnnObject properties = nullptr;
};

using CudnnExtents = std::array<int64_t, 4>;

// The library's number of a type.
int CudnnTypeOf(Type type);

class CudnnGraph {
 public:
  struct Tensor {
    CudnnExtents extents{};
    CudnnExtents strides{};  // in elements
    CudnnObject descriptor = nullptr;
  };

  // `backend` outlives the graph.
  explicit CudnnGraph(const CudnnBackend* backend) : backend_(*backend) {}

  // An array that a run is given as number `id`, at a multiple of 16 bytes.
  Tensor Array(int64_t id, int type, const CudnnExtents& extents, const CudnnExtents& strides);
  // A float that a run is given as number `id`, in the host's memory.
  Tensor Scalar(int64_t id);

  // The product of the last two extents.
  Tensor Multiply(const Tensor& a, const Tensor& b) { return Multiply(a, b, Between(a, b)); }
  // The same into an array.
  Tensor Multiply(const Tensor& a, const Tensor& b, const Tensor& out);
  // Convolutions have images [n, c, h, w], filters [o, c, kh, kw] and places [n, o, h, w], all with
  // channels last in memory.
  Tensor Spatial(int64_t id, Type type, const CudnnExtents& extents);
  // The result, of `extents`, of images and filters.
  Tensor Convolve(const Window& window, const Tensor& images, const Tensor& filters,
                  const CudnnExtents& extents);
  // The gradient, of `extents`, of the filters from images and the result's gradient.
  Tensor FilterGradient(const Window& window, const Tensor& images, const Tensor& places,
                        const CudnnExtents& extents);
  // Returns what lies between two operations as x lies.
  Tensor Like(const Tensor& x);
  // A function of each element.
  Tensor Pointwise(CudnnPointwise mode, const Tensor& x);
  // The same into an array, or into what is Like one.
  Tensor PointwiseInto(CudnnPointwise mode, const Tensor& x, const Tensor& out);
  // Of each two; extents of 1 of `b` are repeated.
  Tensor Pointwise(CudnnPointwise mode, const Tensor& x, const Tensor& b);
  // The same into an array.
  Tensor Pointwise(CudnnPointwise mode, const Tensor& x, const Tensor& b, const Tensor& out);
  // As 16-bit numbers of `type`, as products want their factors.
  Tensor PointwiseAs(int type, CudnnPointwise mode, const Tensor& x, const Tensor& b);
  // Of each element its place along `axis`, as an integer.
  Tensor Index(const Tensor& x, int64_t axis);
  // Adds a >= b, of integers.
  Tensor NotLess(const Tensor& a, const Tensor& b);
  // x where `where`, else `other`.
  Tensor Select(const Tensor& where, const Tensor& x, const Tensor& other);
  // Over the last extent.
  Tensor Reduce(CudnnReduction mode, const Tensor& x);
  // The last two extents exchanged, as numbers of `type`.
  Tensor Transpose(int type, const Tensor& x);

  // Ends it. Errors: Internal with the call that failed first.
  absl::Status Finish(const CudnnPlace& place);
  // REQUIRES: Finish.
  CudnnObject object() const { return graph_.back().object(); }
  const CudnnPlace& place() const { return place_; }
  const CudnnBackend& backend() const { return backend_; }

 private:
  Tensor Add(int64_t id, int type, const CudnnExtents& extents, const CudnnExtents& strides,
             bool between, bool scalar);
  // Returns what lies between two operations.
  Tensor Between(int type, const CudnnExtents& extents);
  Tensor Between(const Tensor& a, const Tensor& b);
  Tensor Apply(CudnnPointwise mode, int precision, const Tensor& x, const Tensor* b,
               const Tensor* where, int64_t axis, const Tensor& out);
  CudnnObject KindOf(const Window& window);
  // Takes a descriptor that was filled, `what` being its name.
  CudnnObject Keep(CudnnDescriptor& descriptor, const char* what);
  void Operation(CudnnDescriptor& descriptor, const char* what);

  const CudnnBackend& backend_;
  CudnnPlace place_;
  std::vector<CudnnDescriptor> parts_;
  std::vector<CudnnObject> operations_;
  std::vector<CudnnDescriptor> graph_;  // one, from Finish on
  int64_t next_ = 1000;                 // number of the next tensor between operations
  absl::Status status_;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_GRAPH_H_
