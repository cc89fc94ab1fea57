// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cudnn_attention.h"

#include <limits>

#include "common/status.h"
#include "engine/cuda/cudnn_api.h"

namespace lockstep::engine::cuda {
namespace {

using Tensor = CudnnGraph::Tensor;

// Numbers of arrays and scalars.
enum Id : int64_t {
  kQ = 1,
  kK,
  kV,
  kY,
  kLogSums,
  kDy,
  kDq,
  kDk,
  kDv,
  kDelta,
  kScale,
  kOne,
  kHidden
};

}  // namespace

absl::StatusOr<std::shared_ptr<const CudnnAttention>> CudnnAttention::Make(
    const CudnnBackend* backend, const CudnnPlace& place, const CudnnAttentionShape& shape) {
  std::shared_ptr<CudnnAttention> made(new CudnnAttention(backend, shape));
  made->scale_ = shape.scale;
  made->minus_infinity_ = -std::numeric_limits<float>::infinity();
  if (shape.backward) {
    made->DescribeBackward();
  } else {
    made->DescribeForward();
  }
  LS_RETURN_IF_ERROR(made->graph_.Finish(place));
  return std::shared_ptr<const CudnnAttention>(std::move(made));
}

Tensor CudnnAttention::Matrix(int64_t id, int64_t stride) {
  const CudnnAttentionShape& s = shape_;
  return graph_.Array(id, CudnnTypeOf(s.type), {s.batch, s.heads, s.length, s.depth},
                      {s.length * stride, s.depth, stride, 1});
}

Tensor CudnnAttention::TransposedMatrix(int64_t id, int64_t stride) {
  const CudnnAttentionShape& s = shape_;
  return graph_.Array(id, CudnnTypeOf(s.type), {s.batch, s.heads, s.depth, s.length},
                      {s.length * stride, s.depth, 1, stride});
}

Tensor CudnnAttention::RowValues(int64_t id) {
  const CudnnAttentionShape& s = shape_;
  return graph_.Array(id, kCudnnFloat, {s.batch, s.heads, s.length, 1},
                      {s.heads * s.length, s.length, 1, 1});
}

// A query sees the keys up to its own place.
Tensor CudnnAttention::Masked(const Tensor& scores) {
  if (!shape_.causal) return scores;
  const Tensor query = graph_.Index(scores, 2);
  const Tensor key = graph_.Index(scores, 3);
  return graph_.Select(graph_.NotLess(query, key), scores, graph_.Scalar(kHidden));
}

void CudnnAttention::DescribeForward() {
  using enum CudnnPointwise;
  const int type = CudnnTypeOf(shape_.type);
  const int64_t width = shape_.heads * shape_.depth;
  CudnnGraph& g = graph_;
  const Tensor products =
      g.Multiply(Matrix(kQ, shape_.stride), TransposedMatrix(kK, shape_.stride));
  const Tensor scores = Masked(g.Pointwise(kMultiply, products, g.Scalar(kScale)));
  const Tensor most = g.Reduce(CudnnReduction::kMaximum, scores);
  const Tensor weights = g.Pointwise(kExp, g.Pointwise(kSubtract, scores, most));
  const Tensor sums = g.Reduce(CudnnReduction::kSum, weights);
  g.Pointwise(kAdd, most, g.Pointwise(kLog, sums), RowValues(kLogSums));
  const Tensor probabilities = g.PointwiseAs(type, kDivide, weights, sums);
  g.Multiply(probabilities, Matrix(kV, shape_.stride), Matrix(kY, width));
}

void CudnnAttention::DescribeBackward() {
  using enum CudnnPointwise;
  const int type = CudnnTypeOf(shape_.type);
  const int64_t stride = shape_.stride, width = shape_.heads * shape_.depth;
  CudnnGraph& g = graph_;
  const Tensor q = Matrix(kQ, stride), keys = TransposedMatrix(kK, stride);
  const Tensor dy = Matrix(kDy, width), scale = g.Scalar(kScale);
  // delta = the sum over a row of dy y
  const Tensor sums = g.Reduce(CudnnReduction::kSum, g.Pointwise(kMultiply, dy, Matrix(kY, width)));
  const Tensor delta = g.Pointwise(kMultiply, sums, g.Scalar(kOne), RowValues(kDelta));
  // p = exp(scores - log_sums); dv = p^T dy
  const Tensor scores = g.Pointwise(kMultiply, g.Multiply(q, keys), scale);
  const Tensor logs = g.Pointwise(kSubtract, scores, RowValues(kLogSums));
  const Tensor p = g.Pointwise(kExp, Masked(logs));
  g.Multiply(g.Transpose(type, p), dy, Matrix(kDv, stride));
  // ds = p (dy v^T - delta) scale; dk = ds^T q; dq = ds k
  const Tensor dp = g.Multiply(dy, TransposedMatrix(kV, stride));
  const Tensor centred = g.Pointwise(kMultiply, g.Pointwise(kSubtract, dp, delta), p);
  const Tensor ds = g.Pointwise(kMultiply, centred, scale);
  g.Multiply(g.Transpose(type, ds), q, Matrix(kDk, stride));
  g.Multiply(ds, g.Transpose(type, keys), Matrix(kDq, stride));
}

CudnnStatus CudnnAttention::Run(CudnnObject handle, const CudnnPlan& plan, const Operands& o,
                                void* workspace) const {
  const auto place = [](const void* data) { return const_cast<void*>(data); };
  std::vector<int64_t> ids = {kQ, kK, kV, kY, kLogSums, kScale};
  std::vector<void*> pointers = {place(o.q), place(o.k), place(o.v),
                                 o.y,        o.log_sums, place(&scale_)};
  if (shape_.backward) {
    ids.insert(ids.end(), {kDy, kDq, kDk, kDv, kDelta, kOne});
    pointers.insert(pointers.end(), {place(o.dy), o.dq, o.dk, o.dv, o.delta, place(&one_)});
  }
  if (shape_.causal) {
    ids.push_back(kHidden);
    pointers.push_back(place(&minus_infinity_));
  }
  return plan.Run(handle, ids, pointers, workspace);
}

std::vector<CudnnAlgorithm> UnproposedAttention(const CudnnAttentionShape& shape, int compute,
                                                size_t version) {
  const bool has = shape.backward && compute >= 100 && compute <= 103 && version < 92300;
  if (!has) return {};
  return {{5, 0, {{14, 2}, {24, 31}}}};  // knobs: stages, and the kernel
}

}  // namespace lockstep::engine::cuda
