// SPDX-License-Identifier: Apache-2.0
// Matrix products by a library, as the engine and the CUDA module speak of them (types.h).
// Thread-safety: values.
#ifndef LOCKSTEP_ENGINE_CUDA_KERNELS_PRODUCT_TYPES_H_
#define LOCKSTEP_ENGINE_CUDA_KERNELS_PRODUCT_TYPES_H_

#include <cstdint>

#include "engine/cuda/kernels/types.h"

namespace lockstep::engine::cuda {

// What a library may do with a product besides adding a bias, and relu.
enum class Epilogue : int32_t {
  kNone,
  kGeluKept,      // C = gelu by tanh of the product with its bias, which goes to aux [m, n]
  kGeluGradient,  // C = the product times gelu's slope at aux [m, n]
  kSumsA,         // aux [m], fp32 = the sums over k of op(A)
  kSumsB,         // aux [n], fp32 = the sums over k of op(B)
};

// How a factor in bytes is to be read.
enum class Fp8 : int32_t { kNone, kE4M3, kE5M2 };

// C[m, n] = op(A) op(B), row major with row strides lda, ldb, ldc; C += with `adds` of a run.
// Factors are of one type; C is fp32 or of that type. Sums are fp32.
struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool a_transposed = false;  // A is stored [k, m]
  bool b_transposed = false;  // B is stored [n, k]
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldc = 0;
  Type factors = Type::kF32;
  Type result = Type::kF32;
  // Both factors in bytes: `factors` is without meaning, A is not transposed and B is, C is the
  // product times both units of a run.
  Fp8 a_fp8 = Fp8::kNone;
  Fp8 b_fp8 = Fp8::kNone;
  bool tf32 = false;   // of fp32 factors
  bool adds = false;   // may be run with adds, or with an addend
  int alignment = 16;  // bytes, of all operands
  // Fused where the library can: bias [n] of type `bias_type`, then relu.
  bool bias = false;
  Type bias_type = Type::kF32;
  bool relu = false;
  // Fused too where the library can. Its aux is of the result's type, with its row stride; sums are
  // written anew even when C is added to.
  Epilogue epilogue = Epilogue::kNone;
};

// Where the operands of one run of a product lie.
struct MatmulRun {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  void* aux = nullptr;
  const float* a_unit = nullptr;  // of factors in bytes
  const float* b_unit = nullptr;
  bool adds = false;
  void* workspace = nullptr;
  const void* addend = nullptr;  // as C, at another place: C = the product + this
};

// One of a library's algorithms for a product, as numbers that mean the same in every process with
// the same library on the same kind of GPU.
struct MatmulAlgorithm {
  uint64_t words[8] = {};
  uint64_t workspace_bytes = 0;
  bool fused = false;  // with bias, relu and epilogue, if these are wanted
};
inline constexpr int kMatmulCandidates = 12;

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_KERNELS_PRODUCT_TYPES_H_
