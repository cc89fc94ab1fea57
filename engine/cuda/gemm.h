// SPDX-License-Identifier: Apache-2.0
// Matrix products with what follows them: bias, residual, relu, mask. What the library
// cannot fuse is done by a kernel of our own; it adds a residual alone to an fp32 result. Where the
// result has 16 bits and something is still added to it, blocks of rows go through fp32 scratch, so
// that a value is rounded once. The library adds biases of the result's type alone: those of 16-bit
// results are rounded first, as autocast does, and are so whoever adds them.
// Thread-safety: immutable after Make; Run by one thread.
#ifndef LOCKSTEP_ENGINE_CUDA_GEMM_H_
#define LOCKSTEP_ENGINE_CUDA_GEMM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/cuda/kernel.h"

namespace lockstep::engine::cuda {

// What the bytes of FP8 factors are to be multiplied with, in device memory.
struct Units {
  const float* a = nullptr;
  const float* b = nullptr;
};

// One prepared product of the library.
class Product {
 public:
  // Errors: Internal with the library's reason.
  static absl::StatusOr<Product> Make(const CudaTarget& target, const MatmulShape& shape);

  bool fuses() const { return matmul_->fuses(prepared_.get()); }
  // C (+)= A B, or A B + addend, on the context's stream.
  Code Run(const CudaContext& context, const void* a, const void* b, void* c,
           const void* bias = nullptr, bool adds = false, void* aux = nullptr,
           const Units& units = {}, const void* addend = nullptr) const;

 private:
  Product(const Matmul* matmul, void* prepared)
      : matmul_(matmul), prepared_(prepared, matmul->destroy) {}

  const Matmul* matmul_;
  std::shared_ptr<void> prepared_;
};

// A product and what follows it. C is dense unless nothing does.
struct GemmSpec {
  MatmulShape shape;  // `bias`, `relu` and `result` say what is wanted in the end
  bool residual = false;
  Type residual_type = Type::kF32;
  bool mask = false;
};

// A product, then bias, residual, relu and mask, rounded once.
class Gemm {
 public:
  // Scratch of any product with this result.
  static size_t ScratchBytes(const GemmSpec& spec);
  // Without `fuse` all that follows the product is done by kernels of our own.
  // Errors: Internal with the library's reason.
  static absl::StatusOr<std::shared_ptr<const Gemm>> Make(const CudaTarget& target,
                                                          const GemmSpec& spec, bool fuse = true);
  // Returns whether the library adds the residual: nothing comes between, and both are fp32.
  static bool AddsResidual(const GemmSpec& spec) {
    return spec.residual && spec.residual_type == Type::kF32 && spec.shape.result == Type::kF32 &&
           !spec.shape.bias && !spec.shape.relu;
  }
  // Returns whether the library adds the bias, or does relu.
  bool fuses() const { return fuses_; }

  struct Operands {
    const void* a = nullptr;
    const void* b = nullptr;
    Units units;
    View c;
    View bias;
    View residual;
    View mask;
    bool adds = false;
    void* scratch = nullptr;
  };
  Code Run(const CudaContext& context, const Operands& operands) const;

  // Returns the type in which the bias of `spec` is added.
  static Type BiasType(const GemmSpec& spec);
  // Brings the bias into that type where it is not its own, at the end of the scratch.
  static Code RoundBias(const Kernels& kernels, const GemmSpec& spec, const CudaContext& context,
                        Operands* operands);

 private:
  Gemm(const CudaTarget& target, const GemmSpec& spec)
      : kernels_(*target.tables->kernels), spec_(spec) {}
  // Returns whether the whole is rounded once when the product itself is rounded.
  static bool NeedsScratch(const GemmSpec& spec, bool fused);
  // Of the product in fp32.
  static size_t SumBytes(const GemmSpec& spec);
  Code Finish(const CudaContext& context, const Operands& operands, const View& x, int64_t row,
              int64_t rows) const;

  const Kernels& kernels_;
  const GemmSpec spec_;
  // One product, or, through scratch, that of a block of rows and that of the last block.
  std::vector<Product> products_;
  int64_t block_rows_ = 0;  // 0: no scratch
  bool fuses_ = false;
};

// Bytes of an element.
inline size_t BytesOf(Type type) { return type == Type::kF32 ? 4 : 2; }
// Of an element of a product's factors.
inline size_t FactorBytes(const MatmulShape& shape) {
  return shape.a_fp8 != Fp8::kNone ? 1 : BytesOf(shape.factors);
}
// The type that two factors are multiplied in: theirs, or fp32 when they differ.
inline Type CommonType(Type a, Type b) { return a == b ? a : Type::kF32; }
// `view` from element `i` on.
View From(const View& view, int64_t i);

}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_ENGINE_CUDA_GEMM_H_
