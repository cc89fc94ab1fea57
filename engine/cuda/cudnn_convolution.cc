// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cudnn_convolution.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/cuda/cudnn_graph.h"
#include "engine/cuda/module.h"

namespace lockstep::engine::cuda {
namespace {

// More than any direction has.
constexpr int kMostAlgorithms = 16;

int MathFor(Type factors, bool tf32) {
  if (factors != Type::kF32) return kCudnnTensorMath;
  return tf32 ? kCudnnDefaultMath : kCudnnFmaMath;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CudnnConvolution>> CudnnConvolution::Make(
    std::shared_ptr<const Cudnn> cudnn, const ConvPlan& plan, bool tf32) {
  std::shared_ptr<CudnnConvolution> made(new CudnnConvolution(std::move(cudnn)));
  const CudnnStatus status = made->Describe(plan, tf32);
  if (status == 0) return std::shared_ptr<const CudnnConvolution>(std::move(made));
  return absl::InternalError(absl::StrCat("cuDNN cannot describe the convolution: ",
                                          made->cudnn_->api().error_string(status)));
}

CudnnStatus CudnnConvolution::Describe(const ConvPlan& plan, bool tf32) {
  const CudnnApi& api = cudnn_->api();
  const ConvGeometry& g = plan.g;
  const Window& w = g.window;
  const int type = CudnnTypeOf(plan.factors);
  const auto extent = [](int64_t value) { return static_cast<int>(value); };
  CudnnStatus status = api.create_tensor(&images_);
  if (status == 0) {
    status = api.set_tensor(images_, kCudnnChannelsLast, type, extent(g.images), extent(g.channels),
                            extent(g.height), extent(g.width));
  }
  if (status == 0) status = api.create_tensor(&places_);
  if (status == 0) {
    status = api.set_tensor(places_, kCudnnChannelsLast, type, extent(g.images), extent(g.filters),
                            extent(g.out_height), extent(g.out_width));
  }
  if (status == 0) status = api.create_filter(&filters_);
  if (status == 0) {
    status = api.set_filter(filters_, type, kCudnnChannelsLast, extent(g.filters),
                            extent(g.group_channels()), extent(w.kernel[0]), extent(w.kernel[1]));
  }
  if (status == 0) status = api.create_convolution(&convolution_);
  if (status == 0) {
    status = api.set_convolution(convolution_, extent(w.padding[0]), extent(w.padding[1]),
                                 extent(w.stride[0]), extent(w.stride[1]), extent(w.dilation[0]),
                                 extent(w.dilation[1]), kCudnnCrossCorrelation, kCudnnFloat);
  }
  if (status == 0) status = api.set_groups(convolution_, extent(g.groups));
  if (status == 0) status = api.set_math(convolution_, MathFor(plan.factors, tf32));
  if (plan.part == ConvPart::kForward) {
    direction_ = &api.forward;
    first_ = images_, second_ = filters_, result_ = places_;
  } else if (plan.part == ConvPart::kInput) {
    direction_ = &api.backward_data;
    first_ = filters_, second_ = places_, result_ = images_;
  } else {
    direction_ = &api.backward_filter;
    first_ = images_, second_ = places_, result_ = filters_;
  }
  return status;
}

CudnnConvolution::~CudnnConvolution() {
  const CudnnApi& api = cudnn_->api();
  if (convolution_ != nullptr) api.destroy_convolution(convolution_);
  if (filters_ != nullptr) api.destroy_filter(filters_);
  if (places_ != nullptr) api.destroy_tensor(places_);
  if (images_ != nullptr) api.destroy_tensor(images_);
}

absl::StatusOr<std::vector<CudnnAlgorithm>> CudnnConvolution::Algorithms(
    size_t workspace_bytes) const {
  std::array<CudnnFound, kMostAlgorithms> found{};
  int count = 0;
  std::vector<CudnnAlgorithm> algorithms;
  const CudnnStatus status = direction_->find(cudnn_->handle(), first_, second_, convolution_,
                                              result_, kMostAlgorithms, &count, found.data());
  if (status != 0) {
    return absl::InternalError(absl::StrCat("it names no algorithm: status ", status, ", ",
                                            cudnn_->api().error_string(status)));
  }
  for (int i = 0; i < std::min(count, kMostAlgorithms); ++i) {
    const CudnnFound& one = found[static_cast<size_t>(i)];
    if (one.status != 0 || one.determinism != kCudnnDeterministic) continue;
    // The same algorithm comes once for each kind of arithmetic; ours is settled.
    const auto same = [&](const CudnnAlgorithm& other) { return other.number == one.algorithm; };
    if (std::any_of(algorithms.begin(), algorithms.end(), same)) continue;
    CudnnAlgorithm algorithm{one.algorithm, 0};
    if (direction_->workspace(cudnn_->handle(), first_, second_, convolution_, result_,
                              one.algorithm, &algorithm.workspace_bytes) != 0) {
      continue;
    }
    if (algorithm.workspace_bytes <= workspace_bytes) algorithms.push_back(algorithm);
  }
  return algorithms;
}

bool CudnnConvolution::Has(const CudnnAlgorithm& algorithm) const {
  size_t bytes = 0;
  return direction_->workspace(cudnn_->handle(), first_, second_, convolution_, result_,
                               algorithm.number, &bytes) == 0 &&
         bytes <= algorithm.workspace_bytes;
}

Code CudnnConvolution::Run(const CudnnAlgorithm& algorithm, const void* first, const void* second,
                           void* result, void* workspace) const {
  const float one = 1, zero = 0;
  const CudnnStatus status = direction_->run(cudnn_->handle(), &one, first_, first, second_, second,
                                             convolution_, algorithm.number, workspace,
                                             algorithm.workspace_bytes, &zero, result_, result);
  return status == 0 ? 0 : kCudnnErrors + status;
}

}  // namespace lockstep::engine::cuda
