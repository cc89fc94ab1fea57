// SPDX-License-Identifier: Apache-2.0
// cuDNN, loaded when a job may use it: from $LOCKSTEP_CUDNN_LIBRARY, else from where the loader,
// the CUDA toolkit and Python's wheels have it. It runs beside the CUDA module, on the module's
// streams. Thread-safety: a handle is its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/cudnn_api.h"
#include "engine/cuda/device.h"

namespace lockstep::engine::cuda {

struct CudnnLibrary {
  CudnnApi api;
  size_t version = 0;  // 91900 is 9.19.0
  std::string path;    // where it was found
  // That NVRTC, by which the library may compile graphs (attention, fused convolutions), is not
  // loaded either, and why; "" when it is.
  std::string no_compiler;

  // "cuDNN 9.19.0".
  std::string name() const;
};

// Where NVRTC is looked for, in order ($LOCKSTEP_NVRTC_LIBRARY): first what lies beside the
// libraries in `folders` (empty ones are left out), as cuDNN would find it itself, then where
// CUDA's libraries are. cuDNN asks the loader for it by its name alone, which finds what the
// process has loaded, wherever that lies.
std::vector<std::string> NvrtcPaths(const std::vector<std::string>& folders);

// Stays loaded for ever, as does NVRTC, which is loaded with it (beside no emulated GPU), before it
// compiles anything. `tables` are the module's, null without one: beside an emulated GPU only the
// library that the environment names counts. Errors: FailedPrecondition that says where it was
// looked for, or that it is none of version 9.
absl::StatusOr<CudnnLibrary> LoadCudnn(const Tables* tables);

// A handle of the library, for a device's stream of kernels.
class Cudnn {
 public:
  // Allocates some of the GPU's memory. Errors: FailedPrecondition when it does not start.
  static absl::StatusOr<std::shared_ptr<const Cudnn>> Open(const Device& device);
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  const CudnnApi& api() const { return library_.api; }
  CudnnObject handle() const { return handle_; }
  std::string name() const { return library_.name(); }
  size_t version() const { return library_.version; }
  // As CudnnLibrary.
  const std::string& no_compiler() const { return library_.no_compiler; }

 private:
  explicit Cudnn(CudnnLibrary library) : library_(std::move(library)) {}

  const CudnnLibrary library_;
  CudnnObject handle_ = nullptr;
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_H_
