// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/fp8_factors.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {
namespace {

Fp8 Fp8Of(const Float8Format& format) {
  return format.fraction_bits == kE5M2.fraction_bits ? Fp8::kE5M2 : Fp8::kE4M3;
}

}  // namespace

std::optional<Fp8Factors> Fp8Factors::Of(const Node& node, const MatmulShape& shape) {
  const std::string text = node.attrs.String(ops::kFp8Attr);
  if (text.empty() || shape.factors != Type::kBF16) return std::nullopt;
  if (shape.m % 8 != 0 || shape.n % 16 != 0 || shape.k % 16 != 0) return std::nullopt;
  const std::vector<std::string> formats = absl::StrSplit(text, ',');
  Fp8Factors made;
  for (size_t i = 0; i < 2; ++i) {
    // The extent that is summed comes last in both.
    const int64_t outer = i == 0 ? shape.m : shape.n;
    PackFp8Args& args = made.args_[i];
    args.turned = i == 0 ? shape.a_transposed : !shape.b_transposed;
    args.rows = args.turned ? shape.k : outer;
    args.columns = args.turned ? outer : shape.k;
    args.format = formats[i] == "e5m2" ? kE5M2 : kE4M3;
    made.code_bytes_[i] = AlignedBytes(static_cast<size_t>(outer * shape.k));
  }
  return made;
}

MatmulShape Fp8Factors::ProductOf(const MatmulShape& shape) const {
  MatmulShape made = shape;
  made.a_transposed = false;
  made.b_transposed = true;
  made.lda = made.ldb = shape.k;
  made.a_fp8 = Fp8Of(args_[0].format);
  made.b_fp8 = Fp8Of(args_[1].format);
  return made;
}

Code Fp8Factors::Pack(const Kernels& kernels, Type type, std::byte* scratch, Stream stream,
                      Gemm::Operands* to) const {
  auto* const tail = reinterpret_cast<float*>(scratch + code_bytes_[0] + code_bytes_[1]);
  for (size_t i = 0; i < 2; ++i) {
    const void** const factor = i == 0 ? &to->a : &to->b;
    PackFp8Args args = args_[i];
    args.x = {const_cast<void*>(*factor), type};
    args.codes = reinterpret_cast<uint8_t*>(scratch + (i == 0 ? 0 : code_bytes_[0]));
    args.unit = tail + kQuantizeParts + i;
    args.partial = tail;
    const Code code = kernels.pack_fp8(args, stream);
    if (code != 0) return code;
    *factor = args.codes;
    (i == 0 ? to->units.a : to->units.b) = args.unit;
  }
  return 0;
}

}  // namespace lockstep::engine::cuda
