// SPDX-License-Identifier: Apache-2.0
// linear and its gradients as matrix products. Factors of different types are brought into fp32
// first; the precision pass makes none of these.
#include <algorithm>
#include <string>

#include "common/status.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels.h"

namespace lockstep::engine::cuda {
namespace {

// What of a node is the product's.
struct LinearSpec {
  GemmSpec gemm;
  size_t cast_bytes[2] = {0, 0};  // of the factors that are brought into fp32
  size_t scratch_bytes() const { return cast_bytes[0] + cast_bytes[1] + Gemm::ScratchBytes(gemm); }
};

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
      shape.relu = node.attrs.String("activation") == "relu";
      shape.bias = node.inputs.size() == 3;
      if (shape.bias) shape.bias_type = TypeOf(graph.type(node.inputs[2]).dtype);
      break;
    case Which::kInput:  // dy [m, n], w [n, k] or [k, n] -> dx [m, k]
      shape.k = a.shape[1];
      shape.b_transposed = in_out;
      spec.gemm.mask = node.inputs.size() == 3;
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
    if (kWhich == Which::kForward) own.bias = o.In(context, 2);
    if (kWhich == Which::kInput) own.mask = o.In(context, 2);
    own.adds = o.Adds(context);
    own.scratch = o.Scratch(context, spec.cast_bytes[0] + spec.cast_bytes[1]);
    return gemm->Run(context, own);
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
