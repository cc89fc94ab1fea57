// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cudnn_fused_convolution.h"

#include <vector>

#include "common/check.h"
#include "common/status.h"

namespace lockstep::engine::cuda {
namespace {

using Tensor = CudnnGraph::Tensor;

// Numbers of arrays.
enum Id : int64_t { kImages = 1, kFilters, kPlaces, kBias, kResidual };

CudnnExtents ImagesOf(const ConvGeometry& g) { return {g.images, g.channels, g.height, g.width}; }
CudnnExtents FiltersOf(const ConvGeometry& g) {
  return {g.filters, g.group_channels(), g.window.kernel[0], g.window.kernel[1]};
}
CudnnExtents PlacesOf(const ConvGeometry& g) {
  return {g.images, g.filters, g.out_height, g.out_width};
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CudnnFusedConvolution>> CudnnFusedConvolution::Make(
    const CudnnBackend* backend, const CudnnPlace& place, const ConvPlan& plan,
    const CudnnFusion& fusion) {
  std::shared_ptr<CudnnFusedConvolution> made(new CudnnFusedConvolution(backend));
  made->fusion_ = fusion;
  if (plan.part == ConvPart::kForward) {
    made->DescribeForward(plan);
  } else {
    LS_CHECK(plan.part == ConvPart::kWeight);
    made->DescribeFilters(plan);
  }
  LS_RETURN_IF_ERROR(made->graph_.Finish(place));
  return std::shared_ptr<const CudnnFusedConvolution>(std::move(made));
}

void CudnnFusedConvolution::DescribeForward(const ConvPlan& plan) {
  CudnnGraph& graph = graph_;
  const ConvGeometry& g = plan.g;
  const Tensor images = graph.Spatial(kImages, plan.factors, ImagesOf(g));
  const Tensor filters = graph.Spatial(kFilters, plan.factors, FiltersOf(g));
  const Tensor result = graph.Spatial(kPlaces, plan.factors, PlacesOf(g));
  int left = (fusion_.bias.has_value() ? 1 : 0) + (fusion_.residual ? 1 : 0) + fusion_.relu;
  LS_CHECK(left > 0) << "nothing follows";
  Tensor x = graph.Convolve(g.window, images, filters, PlacesOf(g));
  // The last one writes the result.
  const auto next = [&] { return --left == 0 ? result : graph.Like(x); };
  if (fusion_.bias.has_value()) {
    const Tensor bias = graph.Spatial(kBias, *fusion_.bias, {1, g.filters, 1, 1});
    x = graph.Pointwise(CudnnPointwise::kAdd, x, bias, next());
  }
  if (fusion_.residual) {
    const Tensor residual = graph.Spatial(kResidual, plan.factors, PlacesOf(g));
    x = graph.Pointwise(CudnnPointwise::kAdd, x, residual, next());
  }
  if (fusion_.relu) graph.PointwiseInto(CudnnPointwise::kRelu, x, next());
}

// The library writes the gradient of 16-bit operands in 16 bits, unless something follows it.
void CudnnFusedConvolution::DescribeFilters(const ConvPlan& plan) {
  CudnnGraph& graph = graph_;
  const ConvGeometry& g = plan.g;
  const Tensor images = graph.Spatial(kImages, plan.factors, ImagesOf(g));
  const Tensor places = graph.Spatial(kPlaces, plan.factors, PlacesOf(g));
  const Tensor sums = graph.FilterGradient(g.window, images, places, FiltersOf(g));
  graph.PointwiseInto(CudnnPointwise::kIdentity, sums,
                      graph.Spatial(kFilters, Type::kF32, FiltersOf(g)));
}

CudnnStatus CudnnFusedConvolution::Run(CudnnObject handle, const CudnnPlan& plan, const Operands& o,
                                       void* workspace) const {
  std::vector<int64_t> ids = {kImages, kFilters, kPlaces};
  std::vector<void*> pointers = {const_cast<void*>(o.images), o.filters, o.places};
  if (fusion_.bias.has_value()) {
    ids.push_back(kBias);
    pointers.push_back(const_cast<void*>(o.bias));
  }
  if (fusion_.residual) {
    ids.push_back(kResidual);
    pointers.push_back(const_cast<void*>(o.residual));
  }
  return plan.Run(handle, ids, pointers, workspace);
}

}  // namespace lockstep::engine::cuda
