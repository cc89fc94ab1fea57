// SPDX-License-Identifier: Apache-2.0
// Whether a convolution is done by our own kernels or by one of cuDNN's algorithms: as files know
// from an earlier run (tuning.h), else the quickest, measured once on this GPU before it does
// anything else. An algorithm that no file knows is run twice on made operands before it may be
// taken: both runs must give the same bits, and what our own kernels give but for rounding. The
// tolerance is less than what one product too few makes of a sum: of 2^20 products in fp32, of 2^14
// in 16 bits and tf32.
// Thread-safety: its device's thread's.
#ifndef LOCKSTEP_ENGINE_CUDA_CONV_TUNING_H_
#define LOCKSTEP_ENGINE_CUDA_CONV_TUNING_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cuda/conv_plan.h"
#include "engine/cuda/cudnn.h"
#include "engine/cuda/cudnn_convolution.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/stopwatch.h"
#include "engine/cuda/tuning.h"

namespace lockstep::engine::cuda {

// A convolution as one word, by which files name it: equal for equal ones.
std::string DescribeConvolution(const Operands& operands, const Node& node, const ConvPlan& plan,
                                bool tf32);

// "" when `made`, values of `type`, are `expected` but for the rounding of sums of `terms` products
// and of the results; else what is wrong. REQUIRES: as many of both.
std::string Disagreement(absl::Span<const float> made, absl::Span<const float> expected, Type type,
                         int64_t terms, bool tf32);

class ConvTuning {
 public:
  // `context` is where the nodes' operands lie: they are written over while convolutions are
  // measured. `tuning` has the files. Errors: Internal.
  static absl::StatusOr<std::unique_ptr<ConvTuning>> Open(Device* device,
                                                          std::shared_ptr<const Cudnn> cudnn,
                                                          ProductTuning* tuning,
                                                          const CudaContext& context);

  // The kernel of the node, `own` being that of our own kernels. Blocks while it is measured.
  // Errors: Internal when the GPU fails, or cuDNN has not what the files say.
  absl::StatusOr<CudaKernel> Choose(const Operands& operands, const Node& node,
                                    const ConvPlan& plan, bool tf32, CudaKernel own);
  // Convolutions that were measured.
  int measured() const { return measured_; }

 private:
  struct Trial {
    std::vector<std::byte> bytes;  // of the result, or of parts of it
    std::vector<float> values;
  };
  // A convolution while it is measured.
  struct Subject {
    const Operands& operands;
    const Node& node;
    const ConvPlan& plan;
    bool tf32;
    std::string name;
  };

  ConvTuning(Device* device, std::shared_ptr<const Cudnn> cudnn, ProductTuning* tuning,
             const CudaContext& context, const Stopwatch& stopwatch);
  absl::StatusOr<ConvAlgorithm> Measure(const Subject& subject,
                                        const std::shared_ptr<const CudnnConvolution>& convolution,
                                        const CudaKernel& own);
  // What is wrong with a kernel, or "". Errors: Internal when the GPU fails.
  absl::StatusOr<std::string> Examine(const Subject& subject, const CudaKernel& kernel,
                                      const Trial& expected);
  // Runs `kernel` on made operands. `*refused` is what it gives. Errors: Internal.
  absl::StatusOr<Trial> Run(const Operands& operands, const CudaKernel& kernel, Code* refused);
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
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_CONV_TUNING_H_
