// SPDX-License-Identifier: Apache-2.0
// A node's CUDA kernel, prepared once: operands as the CPU's kernels have them (graph/storage.h),
// with regions in device memory. Kernels take operands of any element type, so nothing is converted
// around them. Thread-safety: a prepared kernel is immutable; it is launched by one thread.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNEL_H_
#define LOCKSTEP_ENGINE_CUDA_KERNEL_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/round_up.h"
#include "engine/cuda/kernels/tables.h"
#include "engine/graph/graph.h"
#include "engine/graph/storage.h"

namespace lockstep::engine {

namespace cuda {
class CudnnTuning;
class ProductTuning;
}  // namespace cuda

// What a kernel is prepared for.
struct CudaTarget {
  const cuda::Tables* tables = nullptr;
  bool tf32 = false;                      // fp32 factors of matrix products are rounded to 10 bits
  cuda::ProductTuning* tuning = nullptr;  // null: products take the library's own choice
  bool fp8 = false;                       // there are products of factors in FP8
  cuda::CudnnTuning* cudnn = nullptr;     // null: all is done by our own kernels
  bool warpgroups = false;                // the GPU has the instructions of sm_90a
  std::map<std::string, int>* engines = nullptr;  // counts nodes that the tunings do not, or null
};
// Memory that matrix products may use while they run.
inline constexpr size_t kCudaWorkspaceBytes = size_t{32} << 20;

// What all kernels of a run see.
struct CudaContext {
  std::byte* base[kRegions] = {};
  bool accumulate = false;              // outputs in the gradient vector are added to what is there
  bool once = false;                    // what is done once for the parameters comes first
  const int64_t* valid_rows = nullptr;  // of an evaluation; null: all
  cuda::Stream stream = nullptr;
  void* workspace = nullptr;  // kCudaWorkspaceBytes

  template <typename T>
  T* At(const Storage& storage) const {
    return reinterpret_cast<T*>(base[static_cast<int>(storage.region)] + storage.offset);
  }
  // Returns whether an output at `storage` is to be added to.
  bool Adds(const Storage& storage) const {
    return accumulate && storage.region == Region::kGradients;
  }
};

// Launches the node's kernels; does not wait for them.
using CudaKernel = std::function<cuda::Code(const CudaContext&)>;

struct CudaKernelDef {
  // Bytes of scratch. Null: none.
  size_t (*scratch_bytes)(const Graph& graph, const Node& node) = nullptr;
  // Errors: Internal when a library cannot do it.
  absl::StatusOr<CudaKernel> (*prepare)(const Graph& graph, const Node& node,
                                        const KernelOperands& operands,
                                        const CudaTarget& target) = nullptr;
  // As Backend::RoundsBias. Null: it does not.
  bool (*rounds_bias)(const Graph& graph, const Node& node) = nullptr;
};

namespace cuda {

// REQUIRES: an element type of floats.
Type TypeOf(DType dtype);

// A node with its operands, as the lambdas of the kernels capture it.
class Operands {
 public:
  Operands(const Graph& graph, const Node& node, const KernelOperands& operands,
           const CudaTarget& target);

  const Kernels& kernels() const { return *tables_->kernels; }
  const Tables& tables() const { return *tables_; }
  bool has(size_t input) const { return input < inputs_.size(); }
  // The type of input `i`.
  const TensorType& input(size_t i) const { return input_types_[i]; }
  // The type of output `i`.
  const TensorType& output(size_t i = 0) const { return output_types_[i]; }

  // Input `i` as floats; a null view when the node has not so many.
  View In(const CudaContext& context, size_t i) const;
  View Out(const CudaContext& context, size_t i = 0) const;
  template <typename T>
  T* InData(const CudaContext& context, size_t i) const {
    return context.At<T>(inputs_[i]);
  }
  template <typename T>
  T* OutData(const CudaContext& context, size_t i = 0) const {
    return context.At<T>(outputs_[i]);
  }
  template <typename T = void>
  T* Scratch(const CudaContext& context, size_t bytes = 0) const {
    return reinterpret_cast<T*>(context.At<std::byte>(scratch_) + bytes);
  }
  // Returns whether an output is to be added to.
  bool Adds(const CudaContext& context, size_t output = 0) const {
    return context.Adds(outputs_[output]);
  }
  // Bytes that divide the address of input or output `i`, at most 64.
  int InAlignment(size_t i) const { return Alignment(inputs_[i]); }
  // The same of an output.
  int OutAlignment(size_t i = 0) const { return Alignment(outputs_[i]); }

 private:
  static int Alignment(const Storage& storage);

  const Tables* tables_;
  std::vector<TensorType> input_types_;
  std::vector<TensorType> output_types_;
  std::vector<Storage> inputs_;
  std::vector<Storage> outputs_;
  Storage scratch_;
};

// Returns what an array takes of a node's scratch, so that each begins on a line of its own.
inline size_t AlignedBytes(size_t bytes) { return RoundUp(bytes, size_t{256}); }

// Returns what the node drops (ops/dropout.cc), with the address at input `address` of a run.
Drop DropOf(const Attrs& attrs);

}  // namespace cuda
}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_KERNEL_H_
