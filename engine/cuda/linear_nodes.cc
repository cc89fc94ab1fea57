// SPDX-License-Identifier: Apache-2.0
// linear and its gradients as matrix products. Factors of different types are brought into fp32
// first; the precision pass makes none of these. What passes/epilogue_fusion.h has put into a node
// is the library's where it can do it, else kernels of our own follow the product, as they would by
// themselves. Factors in FP8 are multiplied as bytes where the GPU and the library can do that,
// else as the bf16 numbers that they are.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/cuda/fp8_factors.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels.h"
#include "engine/cuda/tuning.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::cuda {
namespace {

// What of a node is the product's.
struct LinearSpec {
  GemmSpec gemm;
  size_t cast_bytes[2] = {0, 0};  // of the factors that are brought into fp32
  // Of the product in fp32, when a smooth activation follows it.
  size_t sum_bytes = 0;
  Function function = Function::kCopy;  // that activation
  Epilogue epilogue = Epilogue::kNone;  // of the whole node
  size_t summed = 0;                    // the operand whose rows are added up, from 1; 0: none
  int64_t columns = 0;                  // of it
  std::optional<Fp8Factors> fp8 = {};   // if the factors can be bytes
  size_t casts() const { return cast_bytes[0] + cast_bytes[1]; }
  size_t part_bytes() const {
    return AlignedBytes(static_cast<size_t>(kColumnSumParts * columns) * sizeof(float));
  }
  size_t fp8_at() const { return casts() + sum_bytes + part_bytes(); }
  size_t gemm_at() const { return fp8_at() + (fp8 ? AlignedBytes(fp8->bytes()) : 0); }
  size_t scratch_bytes() const { return gemm_at() + Gemm::ScratchBytes(gemm); }
};

// A smooth activation takes the product from scratch: it is rounded once, behind the activation.
void SetActivation(const std::string& activation, LinearSpec* spec) {
  MatmulShape& shape = spec->gemm.shape;
  if (activation == "relu") shape.relu = true;
  if (activation == "gelu") spec->function = Function::kGeluErf;
  if (activation == "gelu_tanh") spec->function = Function::kGeluTanh;
  if (activation == "silu") spec->function = Function::kSilu;
  if (spec->function == Function::kCopy) return;
  shape.result = Type::kF32;
  spec->sum_bytes = AlignedBytes(static_cast<size_t>(shape.m * shape.n) * sizeof(float));
}

enum class Which { kForward, kInput, kWeight };

LinearSpec SpecOf(const Graph& graph, const Node& node, Which which) {
  const TensorType& a = graph.type(node.inputs[0]);
  const TensorType& b = graph.type(node.inputs[1]);
  const bool in_out = node.attrs.Int("in_out") != 0;
  LinearSpec spec;
  MatmulShape& shape = spec.gemm.shape;
  shape.factors = CommonType(TypeOf(a.dtype), TypeOf(b.dtype));
  shape.result = TypeOf(node.outputs[0].dtype);
  shape.m = node.outputs[0].shape[0];
  shape.n = node.outputs[0].shape[1];
  shape.lda = a.shape[1];
  shape.ldb = b.shape[1];
  shape.ldc = shape.n;
  switch (which) {
    case Which::kForward:  // x [m, k], w [n, k] or [k, n]
      shape.k = a.shape[1];
      shape.b_transposed = !in_out;
      if (node.attrs.Int("keep") != 0) {
        spec.epilogue = Epilogue::kGeluKept;
      } else {
        SetActivation(node.attrs.String("activation"), &spec);
      }
      shape.bias = node.inputs.size() >= 3;
      spec.gemm.residual = node.inputs.size() == 4;
      if (spec.gemm.residual) spec.gemm.residual_type = TypeOf(graph.type(node.inputs[3]).dtype);
      if (shape.bias) shape.bias_type = TypeOf(graph.type(node.inputs[2]).dtype);
      break;
    case Which::kInput:  // dy [m, n], w [n, k] or [k, n] -> dx [m, k]
      shape.k = a.shape[1];
      shape.b_transposed = in_out;
      if (node.inputs.size() == 3) {
        const ops::Third third = ops::ThirdOf(node.attrs);
        spec.gemm.mask = third == ops::Third::kMask;
        spec.gemm.residual = third == ops::Third::kAddend;
        spec.gemm.residual_type = TypeOf(graph.type(node.inputs[2]).dtype);
        if (third == ops::Third::kGelu) spec.epilogue = Epilogue::kGeluGradient;
      }
      break;
    case Which::kWeight:  // dy [m, n], x [m, k] -> dw [n, k]
      shape.k = a.shape[0];
      shape.a_transposed = true;
      shape.adds = true;
      spec.summed = static_cast<size_t>(node.attrs.Int("sums"));
      if (spec.summed == 0) break;
      spec.epilogue = spec.summed == 1 ? Epilogue::kSumsA : Epilogue::kSumsB;
      spec.columns = node.outputs[1].shape[0];
      break;
  }
  spec.fp8 = Fp8Factors::Of(node, shape);
  for (int i = 0; i < 2; ++i) {
    const TensorType& factor = i == 0 ? a : b;
    if (TypeOf(factor.dtype) == shape.factors) continue;
    spec.cast_bytes[i] = AlignedBytes(static_cast<size_t>(factor.elements()) * sizeof(float));
  }
  return spec;
}

template <Which kWhich>
size_t Scratch(const Graph& graph, const Node& node) {
  return SpecOf(graph, node, kWhich).scratch_bytes();
}

// Factor `i` as the product wants it.
Code Factor(const Operands& o, const LinearSpec& spec, const CudaContext& context, size_t i,
            const void** data) {
  const View view = o.In(context, i);
  *data = view.data;
  if (spec.cast_bytes[i] == 0) return 0;
  PointwiseArgs cast;
  cast.a = view;
  cast.out = {o.Scratch(context, i == 0 ? 0 : spec.cast_bytes[0]), Type::kF32};
  cast.count = o.input(i).elements();
  *data = cast.out.data;
  return o.kernels().pointwise(cast, context.stream);
}

Code Activate(const Operands& o, const LinearSpec& spec, const View& sum,
              const CudaContext& context) {
  PointwiseArgs args;
  args.count = o.output().elements();
  args.function = spec.function;
  args.a = sum;
  args.out = o.Out(context);
  return o.kernels().pointwise(args, context.stream);
}

// The whole node as one product of the library; null where it cannot do that.
absl::StatusOr<std::shared_ptr<const Product>> PrepareWhole(const CudaTarget& target,
                                                            const LinearSpec& spec) {
  MatmulShape shape = spec.gemm.shape;
  shape.bias_type = Gemm::BiasType(spec.gemm);
  const bool mixed = shape.factors == Type::kF32 && shape.result != Type::kF32;
  if (spec.epilogue == Epilogue::kNone || mixed || shape.alignment < 16) return nullptr;
  shape.epilogue = spec.epilogue;
  LS_ASSIGN_OR_RETURN(Product product, Product::Make(target, shape));
  if (!product.fuses()) return nullptr;
  return std::make_shared<const Product>(std::move(product));
}

Code RunWhole(const Operands& o, const LinearSpec& spec, const Product& product,
              const CudaContext& context, const Gemm::Operands& given) {
  Gemm::Operands own = given;
  const Code rounded = Gemm::RoundBias(o.kernels(), spec.gemm, context, &own);
  if (rounded != 0) return rounded;
  void* aux = nullptr;
  if (spec.epilogue == Epilogue::kGeluKept) aux = o.OutData<void>(context, 1);
  if (spec.epilogue == Epilogue::kGeluGradient) aux = o.InData<void>(context, 2);
  if (spec.summed == 0) {
    return product.Run(context, own.a, own.b, own.c.data, own.bias.data, own.adds, aux, own.units);
  }
  const bool adds = o.Adds(context, 1);
  float* const sums = adds ? o.Scratch<float>(context, spec.casts()) : o.OutData<float>(context, 1);
  const Code code =
      product.Run(context, own.a, own.b, own.c.data, nullptr, own.adds, sums, own.units);
  if (code != 0 || !adds) return code;
  PointwiseArgs args;
  args.a = {sums, Type::kF32};
  args.out = o.Out(context, 1);
  args.count = spec.columns;
  args.adds = true;
  return o.kernels().pointwise(args, context.stream);
}

// Returns what the library has not done of the node.
Code RunRest(const Operands& o, const LinearSpec& spec, const CudaContext& context) {
  if (spec.summed > 0) {
    ColumnSumArgs args;
    args.x = o.In(context, spec.summed - 1);
    args.out = o.OutData<float>(context, 1);
    args.partial = o.Scratch<float>(context, spec.casts());
    args.rows = o.input(spec.summed - 1).shape[0];
    args.columns = spec.columns;
    args.adds = o.Adds(context, 1);
    return o.kernels().column_sum(args, context.stream);
  }
  PointwiseArgs args;
  args.count = o.output().elements();
  args.out = o.Out(context);
  if (spec.epilogue == Epilogue::kGeluKept) {
    args.function = Function::kGeluTanh;
    args.a = o.Out(context, 1);
  } else {
    args.function = Function::kGeluTanhBackward;
    args.a = o.Out(context);
    args.b = o.In(context, 2);
  }
  return o.kernels().pointwise(args, context.stream);
}

// The library's part of a node: one product that does it all, or one with the rest behind it.
struct Prepared {
  std::shared_ptr<const Product> whole;
  std::shared_ptr<const Gemm> gemm;
};

// Without `fuse` the library does the product alone.
absl::StatusOr<Prepared> PrepareProducts(const CudaTarget& target, const LinearSpec& spec,
                                         bool fuse) {
  Prepared prepared;
  if (fuse) {
    LS_ASSIGN_OR_RETURN(prepared.whole, PrepareWhole(target, spec));
  }
  if (prepared.whole == nullptr) {
    LS_ASSIGN_OR_RETURN(prepared.gemm, Gemm::Make(target, spec.gemm, fuse));
  }
  return prepared;
}

// With factors in bytes, if the GPU and the library can; `spec->fp8` then says so.
absl::StatusOr<Prepared> PrepareBest(const CudaTarget& target, LinearSpec* spec, bool fuse) {
  if (spec->fp8 && target.fp8 && spec->gemm.shape.alignment >= 16) {
    LinearSpec bytes = *spec;
    bytes.gemm.shape = spec->fp8->ProductOf(spec->gemm.shape);
    absl::StatusOr<Prepared> prepared = PrepareProducts(target, bytes, fuse);
    if (prepared.ok()) return prepared;
  }
  spec->fp8.reset();
  return PrepareProducts(target, *spec, fuse);
}

template <Which kWhich>
CudaKernel KernelOf(const Operands& o, const LinearSpec& spec, const Prepared& prepared,
                    size_t gemm_at) {
  return [o, spec, prepared, gemm_at](const CudaContext& context) {
    const auto& [whole, gemm] = prepared;
    Gemm::Operands own;
    Code code = Factor(o, spec, context, 0, &own.a);
    if (code == 0) code = Factor(o, spec, context, 1, &own.b);
    if (code == 0 && spec.fp8) {
      code = spec.fp8->Pack(o.kernels(), spec.gemm.shape.factors,
                            o.Scratch<std::byte>(context, spec.fp8_at()), context.stream, &own);
    }
    if (code != 0) return code;
    const bool kept = spec.epilogue == Epilogue::kGeluKept;
    own.c = o.Out(context, kept && whole == nullptr ? 1 : 0);
    if (spec.sum_bytes > 0) own.c = {o.Scratch(context, spec.casts()), Type::kF32};
    if (kWhich == Which::kForward) {
      own.bias = o.In(context, 2);
      own.residual = o.In(context, 3);
    }
    if (kWhich == Which::kInput) own.mask = own.residual = o.In(context, 2);
    own.adds = o.Adds(context);
    own.scratch = o.Scratch(context, gemm_at);
    if (whole != nullptr) return RunWhole(o, spec, *whole, context, own);
    code = gemm->Run(context, own);
    if (code == 0 && spec.epilogue != Epilogue::kNone) return RunRest(o, spec, context);
    return code != 0 || spec.sum_bytes == 0 ? code : Activate(o, spec, own.c, context);
  };
}

// The node as a word, by which files name what is quickest for it: the same one whether its bias
// comes rounded or is rounded here.
std::string DescribeFusion(const LinearSpec& spec) {
  MatmulShape shape = spec.gemm.shape;
  shape.bias_type = Gemm::BiasType(spec.gemm);
  shape.epilogue = spec.epilogue;
  return absl::StrCat("follows:", DescribeProduct(shape), spec.gemm.mask ? ":mask" : "",
                      spec.fp8 ? ":fp8" : "");
}

template <Which kWhich>
absl::StatusOr<CudaKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  LinearSpec spec = SpecOf(graph, node, kWhich);
  spec.gemm.shape.alignment = std::min({o.InAlignment(0), o.InAlignment(1), o.OutAlignment()});
  if (spec.gemm.shape.bias) {
    spec.gemm.shape.alignment = std::min(spec.gemm.shape.alignment, o.InAlignment(2));
  }
  // Where the product itself goes: what gelu takes is an output of its own.
  if (spec.epilogue == Epilogue::kGeluKept) {
    spec.gemm.shape.alignment = std::min(spec.gemm.shape.alignment, o.OutAlignment(1));
  } else if (spec.epilogue == Epilogue::kGeluGradient) {
    spec.gemm.shape.alignment = std::min(spec.gemm.shape.alignment, o.InAlignment(2));
  }
  if (Gemm::AddsResidual(spec.gemm)) {
    const size_t residual = kWhich == Which::kForward ? 3 : 2;
    spec.gemm.shape.alignment = std::min(spec.gemm.shape.alignment, o.InAlignment(residual));
  }
  const size_t gemm_at = spec.gemm_at();
  LinearSpec alone = spec;
  LS_ASSIGN_OR_RETURN(const Prepared prepared, PrepareBest(target, &spec, true));
  CudaKernel kernel = KernelOf<kWhich>(o, spec, prepared, gemm_at);
  const bool fuses = prepared.whole != nullptr || prepared.gemm->fuses();
  if (!fuses || target.tuning == nullptr) return kernel;
  LS_ASSIGN_OR_RETURN(const Prepared plain, PrepareBest(target, &alone, false));
  CudaKernel apart = KernelOf<kWhich>(o, alone, plain, gemm_at);
  LS_ASSIGN_OR_RETURN(const bool fused,
                      target.tuning->PrefersFused(DescribeFusion(spec), kernel, apart));
  return fused ? kernel : apart;
}

bool RoundsBias(const Graph& graph, const Node& node) {
  const GemmSpec gemm = SpecOf(graph, node, Which::kForward).gemm;
  return gemm.shape.bias && Gemm::BiasType(gemm) != gemm.shape.bias_type;
}

template <Which kWhich>
constexpr CudaKernelDef Def() {
  return {Scratch<kWhich>, Prepare<kWhich>, kWhich == Which::kForward ? RoundsBias : nullptr};
}

}  // namespace

const CudaKernelDef kLinear = Def<Which::kForward>();
const CudaKernelDef kLinearBackwardInput = Def<Which::kInput>();
const CudaKernelDef kLinearBackwardWeight = Def<Which::kWeight>();

}  // namespace lockstep::engine::cuda
