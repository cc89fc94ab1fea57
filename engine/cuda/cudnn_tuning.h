// SPDX-License-Identifier: Apache-2.0
// Whether a node is done by our own kernels or by one of cuDNN's ways: as files know from an
// earlier run (tuning.h), else the quickest, measured once on this GPU before it does anything
// else. A way that no file knows is run twice on made operands before it may be taken: both runs
// must give the same bits, and what our own kernels give but for rounding.
// Thread-safety: its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_CUDNN_TUNING_H_
#define LOCKSTEP_ENGINE_CUDA_CUDNN_TUNING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cuda/cudnn.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/stopwatch.h"
#include "engine/cuda/tuning.h"

namespace lockstep::engine::cuda {

class CudnnTuning {
 public:
  static constexpr const char* kOwnKernels = "own kernels";

  // `context` is where the nodes' operands lie: they are written over while nodes are measured.
  // `tuning` has the files. Errors: Internal.
  static absl::StatusOr<std::unique_ptr<CudnnTuning>> Open(Device* device,
                                                           std::shared_ptr<const Cudnn> cudnn,
                                                           ProductTuning* tuning,
                                                           const CudaContext& context);

  // A node that the library may do.
  struct Subject {
    std::string name;  // as one word, by which files name it: equal for equal nodes
    const Operands& operands;
    size_t outputs = 1;   // the first ones, which are compared
    int64_t granule = 1;  // of large outputs parts are compared that begin at multiples of it
    std::string own = kOwnKernels;  // how our own kernels do it, by which they are counted
    // The library's ways, those that it thinks quickest first. May be none. Errors: Internal with
    // what the library refuses.
    std::function<absl::StatusOr<std::vector<CudnnAlgorithm>>()> algorithms = nullptr;
    // The kernel of a way. Errors: Internal when the library has it not.
    std::function<absl::StatusOr<CudaKernel>(const CudnnAlgorithm& algorithm)> prepare = nullptr;
    // "", or what is wrong with values `made` of an output. REQUIRES: as many of both.
    std::function<std::string(size_t output, absl::Span<const float> made,
                              absl::Span<const float> expected)>
        disagreement = nullptr;
    bool graph = false;  // which the library may have to compile
  };
  // The kernel of the node, `own` being that of our own kernels. Blocks while it is measured. Where
  // the library refuses to be asked it is `own`, which is said once of each kind of nodes and kept
  // for this run, whose bits stay as they are, but not for others. Errors: Internal when the GPU
  // fails, or cuDNN has not what the files say.
  absl::StatusOr<CudaKernel> Choose(const Subject& subject, CudaKernel own);
  // Counts a node of `kind` that is not asked about.
  void CountOwn(const std::string& kind, const std::string& own = kOwnKernels) {
    ++chosen_[kind + " by " + own];
  }
  // Returns how many nodes of each kind are whose: "conv by cuDNN", "conv by own kernels",
  // "attention by wgmma".
  const std::map<std::string, int>& chosen() const { return chosen_; }
  // Nodes that were measured.
  int measured() const { return measured_; }
  const std::shared_ptr<const Cudnn>& cudnn() const { return cudnn_; }
  const DeviceProperties& device() const { return device_.properties(); }

 private:
  // What a node gave.
  struct Trial {
    struct Output {
      std::vector<std::byte> bytes;  // or of parts of it
      std::vector<float> values;
      bool operator==(const Output& other) const { return bytes == other.bytes; }
    };
    std::vector<Output> outputs;
  };

  struct Way {
    CudnnAlgorithm algorithm;
    CudaKernel kernel;
  };

  CudnnTuning(Device* device, std::shared_ptr<const Cudnn> cudnn, ProductTuning* tuning,
              const CudaContext& context, const Stopwatch& stopwatch);
  // As Choose.
  absl::StatusOr<Way> Decide(const Subject& subject, CudaKernel own);
  absl::StatusOr<Way> Measure(const Subject& subject, const std::vector<CudnnAlgorithm>& algorithms,
                              CudaKernel own);
  // Says that the library gave no answer, once of each kind of nodes.
  void WarnOfRefusal(const Subject& subject, const absl::Status& why);
  // Returns what is wrong with a kernel, or "". Errors: Internal when the GPU fails.
  absl::StatusOr<std::string> Examine(const Subject& subject, const CudaKernel& kernel,
                                      const Trial& expected);
  // Runs `kernel` on made operands. `*refused` is what it gives. Errors: Internal.
  absl::StatusOr<Trial> Run(const Subject& subject, const CudaKernel& kernel, Code* refused);
  absl::StatusOr<Trial::Output> Read(const View& view, int64_t count, int64_t granule);
  // Writes made values that differ by `which`.
  absl::Status Fill(const View& view, int64_t count, size_t which);
  const std::vector<std::byte>& Pattern(Type type);

  Device& device_;
  const std::shared_ptr<const Cudnn> cudnn_;
  ProductTuning& tuning_;
  const CudaContext context_;
  Stopwatch stopwatch_;
  const std::string name_;              // of the device and all libraries
  std::vector<std::byte> patterns_[3];  // by type
  int measured_ = 0;
  std::map<std::string, int> chosen_;
  std::set<std::string> warned_;  // kinds of nodes
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CUDNN_TUNING_H_
