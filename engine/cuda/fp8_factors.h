// SPDX-License-Identifier: Apache-2.0
// The factors of a linear layer's product as bytes of FP8, for the library's products of such on
// GPUs that have them (sm_89 and newer). The values come rounded (ops/quantize_fp8.cc); here they
// become bytes in the order that these products want: both factors with the summed extent last, so
// that some are turned. Thread-safety: values; Pack by one thread for each context.
#ifndef LOCKSTEP_ENGINE_CUDA_FP8_FACTORS_H_
#define LOCKSTEP_ENGINE_CUDA_FP8_FACTORS_H_

#include <optional>

#include "engine/cuda/gemm.h"
#include "engine/cuda/kernel.h"

namespace lockstep::engine::cuda {

class Fp8Factors {
 public:
  // Of `node`, whose product is `shape`. Nothing where its factors are not in FP8, or the extents
  // are not such as the library wants: m a multiple of 8, n and k of 16.
  static std::optional<Fp8Factors> Of(const Node& node, const MatmulShape& shape);

  // The product of the bytes.
  MatmulShape ProductOf(const MatmulShape& shape) const;
  // Of scratch, aligned as it is.
  size_t bytes() const { return code_bytes_[0] + code_bytes_[1] + kTailBytes; }
  // Fills `scratch` [bytes()] from the factors in `to` and puts the bytes in their place.
  Code Pack(const Kernels& kernels, Type type, std::byte* scratch, Stream stream,
            Gemm::Operands* to) const;

 private:
  // Largest magnitudes, and the units of both factors.
  static constexpr size_t kTailBytes = (kQuantizeParts + 2) * sizeof(float);

  PackFp8Args args_[2];
  size_t code_bytes_[2] = {0, 0};
};

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_FP8_FACTORS_H_
