// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/gemm.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "engine/cuda/tuning.h"

namespace lockstep::engine::cuda {
namespace {

constexpr size_t kScratchBytes = size_t{64} << 20;
constexpr int64_t kRowStep = 128;

// Rows that go through the scratch at a time.
int64_t BlockRows(const MatmulShape& shape) {
  const int64_t fit = static_cast<int64_t>(kScratchBytes / sizeof(float)) / shape.n;
  return std::min(shape.m, std::max(fit / kRowStep, int64_t{1}) * kRowStep);
}

}  // namespace

View From(const View& view, int64_t i) {
  if (view.data == nullptr) return view;
  return {static_cast<std::byte*>(view.data) + static_cast<size_t>(i) * BytesOf(view.type),
          view.type};
}

absl::StatusOr<Product> Product::Make(const CudaTarget& target, const MatmulShape& shape) {
  const Matmul* matmul = target.tables->matmul;
  std::array<char, 512> error{};
  MatmulShape own = shape;
  own.tf32 = target.tf32;
  MatmulAlgorithm algorithm;
  if (target.tuning != nullptr) {
    LS_ASSIGN_OR_RETURN(algorithm, target.tuning->Choose(own));
  } else {
    std::array<MatmulAlgorithm, kMatmulCandidates> found;
    const int count =
        matmul->candidates(own, kCudaWorkspaceBytes, found.data(), error.data(), error.size());
    if (count == 0) return absl::InternalError(error.data());
    algorithm = found[0];
  }
  void* prepared = matmul->prepare(own, algorithm, error.data(), error.size());
  if (prepared == nullptr) return absl::InternalError(error.data());
  return Product(matmul, prepared);
}

Code Product::Run(const CudaContext& context, const void* a, const void* b, void* c,
                  const void* bias, bool adds, void* aux, const Units& units,
                  const void* addend) const {
  const MatmulRun run{a, b, c, bias, aux, units.a, units.b, adds, context.workspace, addend};
  return matmul_->run(prepared_.get(), run, context.stream);
}

bool Gemm::NeedsScratch(const GemmSpec& spec, bool fused) {
  if (spec.shape.result == Type::kF32) return false;
  return spec.shape.factors == Type::kF32 || spec.residual || (spec.shape.bias && !fused);
}

Type Gemm::BiasType(const GemmSpec& spec) {
  const MatmulShape& shape = spec.shape;
  const bool mixed = shape.factors == Type::kF32 && shape.result != Type::kF32;
  return shape.bias && !spec.residual && !mixed ? shape.result : shape.bias_type;
}

size_t Gemm::SumBytes(const GemmSpec& spec) {
  if (!NeedsScratch(spec, false)) return 0;
  return AlignedBytes(static_cast<size_t>(BlockRows(spec.shape) * spec.shape.n) * sizeof(float));
}

size_t Gemm::ScratchBytes(const GemmSpec& spec) {
  const Type type = BiasType(spec);
  const bool own = type != spec.shape.bias_type;
  return SumBytes(spec) +
         (own ? AlignedBytes(static_cast<size_t>(spec.shape.n) * BytesOf(type)) : 0);
}

Code Gemm::RoundBias(const Kernels& kernels, const GemmSpec& spec, const CudaContext& context,
                     Operands* operands) {
  const Type type = BiasType(spec);
  if (type == operands->bias.type || operands->bias.data == nullptr) return 0;
  PointwiseArgs args;
  args.a = operands->bias;
  args.out = {static_cast<std::byte*>(operands->scratch) + SumBytes(spec), type};
  args.count = spec.shape.n;
  operands->bias = args.out;
  return kernels.pointwise(args, context.stream);
}

absl::StatusOr<std::shared_ptr<const Gemm>> Gemm::Make(const CudaTarget& target,
                                                       const GemmSpec& spec, bool fuse) {
  std::shared_ptr<Gemm> gemm(new Gemm(target, spec));
  MatmulShape shape = spec.shape;
  shape.bias_type = BiasType(spec);
  shape.adds |= AddsResidual(spec);
  // The library chooses for a bias that begins at a multiple of 16 bytes.
  const bool fuses = fuse && (!spec.shape.bias || spec.shape.alignment >= 16);
  if (spec.residual || !fuses) shape.bias = shape.relu = false;  // a residual comes before relu
  const bool wants = shape.bias || shape.relu;
  const bool whole = fuses || !NeedsScratch(spec, false);
  if (whole && !NeedsScratch({shape, spec.residual, spec.residual_type, spec.mask}, true)) {
    LS_ASSIGN_OR_RETURN(Product product, Product::Make(target, shape));
    gemm->fuses_ = wants && product.fuses();
    if (!NeedsScratch(spec, gemm->fuses_)) {
      gemm->products_.push_back(std::move(product));
      return std::shared_ptr<const Gemm>(std::move(gemm));
    }
  }
  gemm->fuses_ = false;
  LS_CHECK(!shape.a_transposed && shape.ldc == shape.n) << "a sum of weights is fp32";
  shape.result = Type::kF32;
  shape.bias = shape.relu = false;
  gemm->block_rows_ = BlockRows(shape);
  for (const int64_t rows : {gemm->block_rows_, shape.m % gemm->block_rows_}) {
    if (rows == 0) continue;
    shape.m = rows;
    LS_ASSIGN_OR_RETURN(Product product, Product::Make(target, shape));
    gemm->products_.push_back(std::move(product));
  }
  return std::shared_ptr<const Gemm>(std::move(gemm));
}

// Rows [row, row + rows) of the result from `x`.
Code Gemm::Finish(const CudaContext& context, const Operands& operands, const View& x, int64_t row,
                  int64_t rows) const {
  EpilogueArgs args;
  const int64_t n = spec_.shape.n;
  args.x = x;
  if (!fuses_ && spec_.shape.bias) args.bias = operands.bias;
  args.relu = !fuses_ && spec_.shape.relu;
  if (spec_.residual && !AddsResidual(spec_)) args.residual = From(operands.residual, row * n);
  if (spec_.mask) args.mask = From(operands.mask, row * n);
  args.out = From(operands.c, row * n);
  args.rows = rows;
  args.columns = n;
  const bool nothing = args.bias.data == nullptr && !args.relu && args.residual.data == nullptr &&
                       args.mask.data == nullptr && args.x.data == args.out.data;
  return nothing ? 0 : kernels_.epilogue(args, context.stream);
}

Code Gemm::Run(const CudaContext& context, const Operands& given) const {
  const MatmulShape& shape = spec_.shape;
  Operands operands = given;
  const Code rounded = RoundBias(kernels_, spec_, context, &operands);
  if (rounded != 0) return rounded;
  if (block_rows_ == 0) {
    const Code code =
        products_[0].Run(context, operands.a, operands.b, operands.c.data,
                         fuses_ ? operands.bias.data : nullptr, operands.adds, nullptr,
                         operands.units, AddsResidual(spec_) ? operands.residual.data : nullptr);
    return code != 0 ? code : Finish(context, operands, operands.c, 0, shape.m);
  }
  for (int64_t row = 0; row < shape.m; row += block_rows_) {
    const int64_t rows = std::min(block_rows_, shape.m - row);
    const Product& product = products_[rows == block_rows_ ? 0 : products_.size() - 1];
    const size_t row_bytes = static_cast<size_t>(shape.lda) * FactorBytes(shape);
    const auto* a =
        static_cast<const std::byte*>(operands.a) + static_cast<size_t>(row) * row_bytes;
    Code code = product.Run(context, a, operands.b, operands.scratch, nullptr, false, nullptr,
                            operands.units);
    if (code == 0) code = Finish(context, operands, {operands.scratch, Type::kF32}, row, rows);
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace lockstep::engine::cuda
