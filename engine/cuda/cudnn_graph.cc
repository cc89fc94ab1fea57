// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cudnn_graph.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/cuda/cudnn_api.h"

namespace lockstep::engine::cuda {
namespace {

using enum CudnnAttribute;
using Types = CudnnAttributeType;

constexpr int64_t kAlignment = 16;  // of arrays, in bytes
constexpr int64_t kNoAxis = -1;
constexpr float kOne = 1, kZero = 0;

CudnnExtents Dense(const CudnnExtents& e) { return {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1}; }

CudnnExtents ChannelsLast(const CudnnExtents& e) {
  return {e[1] * e[2] * e[3], 1, e[1] * e[3], e[1]};
}

std::vector<int64_t> ListOf(const CudnnExtents& e) { return {e.begin(), e.end()}; }
std::vector<int64_t> ListOf(const int64_t (&axes)[2]) { return {axes[0], axes[1]}; }

}  // namespace

int CudnnTypeOf(Type type) {
  if (type == Type::kBF16) return kCudnnBfloat16;
  return type == Type::kF16 ? kCudnnHalf : kCudnnFloat;
}

CudnnObject CudnnGraph::Keep(CudnnDescriptor& descriptor, const char* what) {
  if (status_.ok() && descriptor.status() != 0) {
    status_ = absl::InternalError(
        absl::StrCat("cuDNN refuses ", what, " with status ", descriptor.status()));
  }
  parts_.push_back(std::move(descriptor));
  return parts_.back().object();
}

void CudnnGraph::Operation(CudnnDescriptor& descriptor, const char* what) {
  descriptor.Finalize();
  operations_.push_back(Keep(descriptor, what));
}

CudnnGraph::Tensor CudnnGraph::Add(int64_t id, int type, const CudnnExtents& extents,
                                   const CudnnExtents& strides, bool between, bool scalar) {
  CudnnDescriptor tensor(backend_, CudnnKind::kTensor);
  tensor.Set(kTensorType, Types::kDataType, type)
      .Set(kTensorExtents, ListOf(extents))
      .Set(kTensorStrides, ListOf(strides))
      .Set(kTensorId, id)
      .Set(kTensorAlignment, kAlignment);
  if (between) tensor.Set(kTensorIsVirtual, true);
  if (scalar) tensor.Set(kTensorIsByValue, true);
  tensor.Finalize();
  return {extents, strides, Keep(tensor, "a tensor")};
}

CudnnGraph::Tensor CudnnGraph::Array(int64_t id, int type, const CudnnExtents& extents,
                                     const CudnnExtents& strides) {
  return Add(id, type, extents, strides, false, false);
}

CudnnGraph::Tensor CudnnGraph::Scalar(int64_t id) {
  return Add(id, kCudnnFloat, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}

CudnnGraph::Tensor CudnnGraph::Between(int type, const CudnnExtents& extents) {
  return Add(next_++, type, extents, Dense(extents), true, false);
}

CudnnGraph::Tensor CudnnGraph::Between(const Tensor& a, const Tensor& b) {
  return Between(kCudnnFloat, {a.extents[0], a.extents[1], a.extents[2], b.extents[3]});
}

CudnnGraph::Tensor CudnnGraph::Multiply(const Tensor& a, const Tensor& b, const Tensor& out) {
  CudnnDescriptor product(backend_, CudnnKind::kMatmul);
  product.Set(kMatmulPrecision, Types::kDataType, kCudnnFloat).Finalize();
  const CudnnObject how = Keep(product, "a kind of product");
  CudnnDescriptor operation(backend_, CudnnKind::kMatmulOperation);
  operation.Set(kMatmulA, a.descriptor)
      .Set(kMatmulB, b.descriptor)
      .Set(kMatmulC, out.descriptor)
      .Set(kMatmulDescriptor, how);
  Operation(operation, "a product");
  return out;
}

CudnnGraph::Tensor CudnnGraph::Spatial(int64_t id, Type type, const CudnnExtents& extents) {
  return Array(id, CudnnTypeOf(type), extents, ChannelsLast(extents));
}

CudnnGraph::Tensor CudnnGraph::Like(const Tensor& x) {
  return Add(next_++, kCudnnFloat, x.extents, x.strides, true, false);
}

CudnnObject CudnnGraph::KindOf(const Window& window) {
  CudnnDescriptor kind(backend_, CudnnKind::kConvolution);
  kind.Set(kConvolutionPrecision, Types::kDataType, kCudnnFloat)
      .Set(kConvolutionMode, Types::kConvolutionMode, kCudnnCrossCorrelation)
      .Set(kConvolutionAxes, int64_t{2})
      .Set(kConvolutionPaddingBefore, ListOf(window.padding))
      .Set(kConvolutionPaddingAfter, ListOf(window.padding))
      .Set(kConvolutionStrides, ListOf(window.stride))
      .Set(kConvolutionDilations, ListOf(window.dilation))
      .Finalize();
  return Keep(kind, "a kind of convolution");
}

CudnnGraph::Tensor CudnnGraph::Convolve(const Window& window, const Tensor& images,
                                        const Tensor& filters, const CudnnExtents& extents) {
  const Tensor out = Like({extents, ChannelsLast(extents)});
  const CudnnObject kind = KindOf(window);
  CudnnDescriptor operation(backend_, CudnnKind::kConvolutionOperation);
  operation.Set(kForwardDescriptor, kind)
      .Set(kForwardImages, images.descriptor)
      .Set(kForwardFilters, filters.descriptor)
      .Set(kForwardResult, out.descriptor)
      .Set(kForwardAlpha, Types::kFloat, 1, &kOne)
      .Set(kForwardBeta, Types::kFloat, 1, &kZero);
  Operation(operation, "a convolution");
  return out;
}

CudnnGraph::Tensor CudnnGraph::FilterGradient(const Window& window, const Tensor& images,
                                              const Tensor& places, const CudnnExtents& extents) {
  const Tensor out = Like({extents, ChannelsLast(extents)});
  const CudnnObject kind = KindOf(window);
  CudnnDescriptor operation(backend_, CudnnKind::kFilterGradientOperation);
  operation.Set(kFilterGradientDescriptor, kind)
      .Set(kFilterGradientImages, images.descriptor)
      .Set(kFilterGradientPlaces, places.descriptor)
      .Set(kFilterGradientResult, out.descriptor)
      .Set(kFilterGradientAlpha, Types::kFloat, 1, &kOne)
      .Set(kFilterGradientBeta, Types::kFloat, 1, &kZero);
  Operation(operation, "a gradient of filters");
  return out;
}

CudnnGraph::Tensor CudnnGraph::Apply(CudnnPointwise mode, int precision, const Tensor& x,
                                     const Tensor* b, const Tensor* where, int64_t axis,
                                     const Tensor& out) {
  CudnnDescriptor pointwise(backend_, CudnnKind::kPointwise);
  pointwise.Set(kPointwiseMode, Types::kPointwiseMode, static_cast<int>(mode))
      .Set(kPointwisePrecision, Types::kDataType, precision);
  if (axis != kNoAxis) pointwise.Set(kPointwiseAxis, axis);
  pointwise.Finalize();
  const CudnnObject how = Keep(pointwise, "a kind of arithmetic");
  CudnnDescriptor operation(backend_, CudnnKind::kPointwiseOperation);
  operation.Set(kPointwiseDescriptor, how).Set(kPointwiseX, x.descriptor);
  if (b != nullptr) operation.Set(kPointwiseB, b->descriptor);
  if (where != nullptr) operation.Set(kPointwiseT, where->descriptor);
  operation.Set(kPointwiseY, out.descriptor);
  Operation(operation, "arithmetic by element");
  return out;
}

CudnnGraph::Tensor CudnnGraph::Pointwise(CudnnPointwise mode, const Tensor& x) {
  return Apply(mode, kCudnnFloat, x, nullptr, nullptr, kNoAxis, Between(kCudnnFloat, x.extents));
}

CudnnGraph::Tensor CudnnGraph::PointwiseInto(CudnnPointwise mode, const Tensor& x,
                                             const Tensor& out) {
  return Apply(mode, kCudnnFloat, x, nullptr, nullptr, kNoAxis, out);
}

CudnnGraph::Tensor CudnnGraph::Pointwise(CudnnPointwise mode, const Tensor& x, const Tensor& b) {
  return Pointwise(mode, x, b, Between(kCudnnFloat, x.extents));
}

CudnnGraph::Tensor CudnnGraph::Pointwise(CudnnPointwise mode, const Tensor& x, const Tensor& b,
                                         const Tensor& out) {
  return Apply(mode, kCudnnFloat, x, &b, nullptr, kNoAxis, out);
}

CudnnGraph::Tensor CudnnGraph::PointwiseAs(int type, CudnnPointwise mode, const Tensor& x,
                                           const Tensor& b) {
  return Pointwise(mode, x, b, Between(type, x.extents));
}

CudnnGraph::Tensor CudnnGraph::Index(const Tensor& x, int64_t axis) {
  return Apply(CudnnPointwise::kIndex, kCudnnFloat, x, nullptr, nullptr, axis,
               Between(kCudnnInt32, x.extents));
}

CudnnGraph::Tensor CudnnGraph::NotLess(const Tensor& a, const Tensor& b) {
  return Apply(CudnnPointwise::kNotLess, kCudnnBoolean, a, &b, nullptr, kNoAxis,
               Between(kCudnnBoolean, a.extents));
}

CudnnGraph::Tensor CudnnGraph::Select(const Tensor& where, const Tensor& x, const Tensor& other) {
  return Apply(CudnnPointwise::kSelect, kCudnnFloat, x, &other, &where, kNoAxis,
               Between(kCudnnFloat, x.extents));
}

CudnnGraph::Tensor CudnnGraph::Reduce(CudnnReduction mode, const Tensor& x) {
  CudnnDescriptor reduction(backend_, CudnnKind::kReduction);
  reduction.Set(kReductionMode, Types::kReductionMode, static_cast<int>(mode))
      .Set(kReductionPrecision, Types::kDataType, kCudnnFloat)
      .Finalize();
  const CudnnObject how = Keep(reduction, "a kind of reduction");
  const Tensor out = Between(kCudnnFloat, {x.extents[0], x.extents[1], x.extents[2], 1});
  CudnnDescriptor operation(backend_, CudnnKind::kReductionOperation);
  operation.Set(kReductionX, x.descriptor)
      .Set(kReductionY, out.descriptor)
      .Set(kReductionDescriptor, how);
  Operation(operation, "a reduction");
  return out;
}

CudnnGraph::Tensor CudnnGraph::Transpose(int type, const Tensor& x) {
  const CudnnExtents &e = x.extents, &s = x.strides;
  const Tensor out =
      Add(next_++, type, {e[0], e[1], e[3], e[2]}, {s[0], s[1], s[3], s[2]}, true, false);
  CudnnDescriptor operation(backend_, CudnnKind::kReshapeOperation);
  operation.Set(kReshapeX, x.descriptor).Set(kReshapeY, out.descriptor);
  Operation(operation, "a transposition");
  return out;
}

absl::Status CudnnGraph::Finish(const CudnnPlace& place) {
  place_ = place;
  CudnnDescriptor graph(backend_, CudnnKind::kOperationGraph);
  if (place.handle != nullptr) graph.Set(kGraphHandle, Types::kHandle, 1, &place.handle);
  graph.Set(kGraphOperations, Types::kDescriptor, static_cast<int64_t>(operations_.size()),
            static_cast<const void*>(operations_.data()));
  graph.Finalize();
  if (status_.ok() && graph.status() != 0) {
    status_ =
        absl::InternalError(absl::StrCat("cuDNN refuses the graph with status ", graph.status()));
  }
  graph_.push_back(std::move(graph));
  return status_;
}

}  // namespace lockstep::engine::cuda
