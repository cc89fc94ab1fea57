// SPDX-License-Identifier: Apache-2.0
// linear and its gradients as matrix products. Factors of different types are brought into fp32
// first; the precision pass makes none of these.
#include <algorithm>
#include <string>

#include "common/status.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels.h"
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
  size_t casts() const { return cast_bytes[0] + cast_bytes[1]; }
  size_t scratch_bytes() const { return casts() + sum_bytes + Gemm::ScratchBytes(gemm); }
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
  spec->sum_bytes = RoundUp(static_cast<size_t>(shape.m * shape.n) * sizeof(float));
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
      SetActivation(node.attrs.String("activation"), &spec);
      shape.bias = node.inputs.size() >= 3;
      spec.gemm.residual = node.inputs.size() == 4;
      if (shape.bias) shape.bias_type = TypeOf(graph.type(node.inputs[2]).dtype);
      break;
    case Which::kInput:  // dy [m, n], w [n, k] or [k, n] -> dx [m, k]
      shape.k = a.shape[1];
      shape.b_transposed = in_out;
      if (node.inputs.size() == 3) {
        const ops::Third third = ops::ThirdOf(node.attrs);
        spec.gemm.mask = third == ops::Third::kMask;
        spec.gemm.residual = third == ops::Third::kAddend;
      }
      break;
    case Which::kWeight:  // dy [m, n], x [m, k] -> dw [n, k]
      shape.k = a.shape[0];
      shape.a_transposed = true;
      shape.adds = true;
      break;
  }
  for (int i = 0; i < 2; ++i) {
    const TensorType& factor = i == 0 ? a : b;
    if (TypeOf(factor.dtype) == shape.factors) continue;
    spec.cast_bytes[i] = RoundUp(static_cast<size_t>(factor.elements()) * sizeof(float));
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

template <Which kWhich>
absl::StatusOr<CudaKernel> Prepare(const Graph& graph, const Node& node,
                                   const KernelOperands& operands, const CudaTarget& target) {
  const Operands o(graph, node, operands, target);
  LinearSpec spec = SpecOf(graph, node, kWhich);
  spec.gemm.shape.alignment = std::min({o.InAlignment(0), o.InAlignment(1), o.OutAlignment()});
  if (spec.gemm.shape.bias) {
    spec.gemm.shape.alignment = std::min(spec.gemm.shape.alignment, o.InAlignment(2));
  }
  LS_ASSIGN_OR_RETURN(const std::shared_ptr<const Gemm> gemm, Gemm::Make(target, spec.gemm));
  return [o, spec, gemm](const CudaContext& context) {
    Gemm::Operands own;
    Code code = Factor(o, spec, context, 0, &own.a);
    if (code == 0) code = Factor(o, spec, context, 1, &own.b);
    if (code != 0) return code;
    own.c = o.Out(context);
    if (spec.sum_bytes > 0) own.c = {o.Scratch(context, spec.casts()), Type::kF32};
    if (kWhich == Which::kForward) {
      own.bias = o.In(context, 2);
      own.residual = o.In(context, 3);
    }
    if (kWhich == Which::kInput) own.mask = own.residual = o.In(context, 2);
    own.adds = o.Adds(context);
    own.scratch = o.Scratch(context, spec.casts() + spec.sum_bytes);
    code = gemm->Run(context, own);
    return code != 0 || spec.sum_bytes == 0 ? code : Activate(o, spec, own.c, context);
  };
}

template <Which kWhich>
constexpr CudaKernelDef Def() {
  return {Scratch<kWhich>, Prepare<kWhich>};
}

}  // namespace

const CudaKernelDef kLinear = Def<Which::kForward>();
const CudaKernelDef kLinearBackwardInput = Def<Which::kInput>();
const CudaKernelDef kLinearBackwardWeight = Def<Which::kWeight>();

}  // namespace lockstep::engine::cuda
