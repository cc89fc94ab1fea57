// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/conv_tuning.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/status.h"
#include "engine/cuda/conv_cudnn.h"
#include "engine/cuda/cudnn_convolution.h"

namespace lockstep::engine::cuda {
namespace {

// Products that are added up in an element of the result.
int64_t TermsOf(const ConvPlan& plan) {
  const ConvGeometry& g = plan.g;
  if (plan.part == ConvPart::kForward) return plan.patch();
  return plan.part == ConvPart::kInput ? g.taps() * g.group_filters() : g.images * plan.pixels();
}

const char* KindOf(const ConvPlan& plan) {
  const char* const kinds[] = {"conv", "conv-input", "conv-weight"};
  return kinds[static_cast<int>(plan.part)];
}

// Ways that are tried: each is compiled first, which takes a part of a second.
constexpr size_t kMostGraphs = 4;

// As ChooseConvolution, as a graph.
absl::StatusOr<CudaKernel> ChooseFused(CudnnTuning* tuning, CudnnTuning::Subject subject,
                                       const Node& node, const ConvPlan& plan, CudaKernel own) {
  const std::shared_ptr<const Cudnn>& cudnn = tuning->cudnn();
  const Operands& o = subject.operands;
  const auto convolution = CudnnFusedConvolution::Make(
      &cudnn->api().backend, {cudnn->handle(), nullptr}, plan, FusionOf(o, node, plan));
  std::optional<CudnnWays> ways;
  if (convolution.ok()) ways.emplace((*convolution)->graph(), CudnnWorkspaceBytes(plan));
  subject.graph = true;
  subject.algorithms = [&]() -> absl::StatusOr<std::vector<CudnnAlgorithm>> {
    LS_RETURN_IF_ERROR(convolution.status());
    LS_ASSIGN_OR_RETURN(std::vector<CudnnAlgorithm> proposed,
                        CudnnPlan::Propose((*convolution)->graph(), kMostGraphs));
    return ways->Ready(std::move(proposed));
  };
  subject.prepare = [&](const CudnnAlgorithm& algorithm) -> absl::StatusOr<CudaKernel> {
    LS_RETURN_IF_ERROR(convolution.status());
    LS_ASSIGN_OR_RETURN(const auto prepared, ways->Prepare(algorithm));
    return PrepareFused(o, plan, {cudnn, *convolution, prepared});
  };
  return tuning->Choose(subject, std::move(own));
}

}  // namespace

std::string DescribeConvolution(const Operands& o, const Node& node, const ConvPlan& plan,
                                bool tf32) {
  const ConvGeometry& g = plan.g;
  const Window& w = g.window;
  std::string text = absl::StrCat(KindOf(plan), ":", g.images, "x", g.height, "x", g.width, "x",
                                  g.channels, ":", g.filters, "x", w.kernel[0], "x", w.kernel[1]);
  absl::StrAppend(&text, ":s", w.stride[0], "x", w.stride[1], ":p", w.padding[0], "x", w.padding[1],
                  ":d", w.dilation[0], "x", w.dilation[1], ":g", g.groups, ":",
                  NameOf(plan.factors));
  if (tf32) absl::StrAppend(&text, ":tf32");
  if (plan.part == ConvPart::kForward) {
    if (o.has(2)) absl::StrAppend(&text, ":bias");
    if (o.has(3)) absl::StrAppend(&text, ":residual");
    if (node.attrs.String("activation") == "relu") absl::StrAppend(&text, ":relu");
  } else if (plan.part == ConvPart::kInput && o.has(2)) {
    absl::StrAppend(&text, ":mask");
  }
  return text;
}

// Of values below 1 a sum of n products is about sqrt(n) / 3, and its rounding errors grow as
// sqrt(n) too: relative to the result's size a missing product makes 1 / sqrt(n), while 8 units of
// fp32 at each step make sqrt(n) 2^-20. Factors that were rounded to tf32, twice, make 2^-7 at
// most.
std::string Disagreement(absl::Span<const float> made, absl::Span<const float> expected, Type type,
                         int64_t terms, bool tf32) {
  LS_CHECK_EQ(made.size(), expected.size());
  double squares = 0;
  for (const float x : expected) squares += static_cast<double>(x) * static_cast<double>(x);
  const double size = std::sqrt(squares / static_cast<double>(std::max(made.size(), size_t{1})));
  const double sums =
      (std::sqrt(static_cast<double>(terms)) * 0x1p-20 + (tf32 ? 0x1p-7 : 0)) * size;
  // Each side is rounded once, by half a unit; a unit between them may be crossed.
  const double unit = type == Type::kF32 ? 0 : type == Type::kBF16 ? 0x1p-7 : 0x1p-10;
  for (size_t i = 0; i < made.size(); ++i) {
    const double is = static_cast<double>(made[i]);
    const double want = static_cast<double>(expected[i]);
    const double room = sums + unit * std::fabs(want);
    if (std::fabs(is - want) <= room) continue;  // NaN is not
    return absl::StrFormat("value %d of %d is %g instead of %g, +-%g", i, made.size(), is, want,
                           room);
  }
  return "";
}

absl::StatusOr<CudaKernel> ChooseConvolution(CudnnTuning* tuning, const Operands& o,
                                             const Node& node, const ConvPlan& plan, bool tf32,
                                             CudaKernel own) {
  CudnnTuning::Subject subject{DescribeConvolution(o, node, plan, tf32), o};
  subject.disagreement = [&](size_t, absl::Span<const float> made,
                             absl::Span<const float> expected) {
    return Disagreement(made, expected, TypeOf(o.output().dtype), TermsOf(plan), tf32);
  };
  if (CanBeFused(o, plan)) return ChooseFused(tuning, subject, node, plan, std::move(own));
  if (!CanBeCudnn(o, plan)) {
    tuning->CountOwn(KindOf(plan));
    return own;
  }
  const auto convolution = CudnnConvolution::Make(tuning->cudnn(), plan, tf32);
  subject.algorithms = [&]() -> absl::StatusOr<std::vector<CudnnAlgorithm>> {
    LS_RETURN_IF_ERROR(convolution.status());
    return (*convolution)->Algorithms(CudnnWorkspaceBytes(plan));
  };
  subject.prepare = [&](const CudnnAlgorithm& algorithm) -> absl::StatusOr<CudaKernel> {
    if (!convolution.ok()) return convolution.status();
    if ((*convolution)->Has(algorithm)) return PrepareCudnn(o, node, plan, *convolution, algorithm);
    return absl::InternalError("it is gone, or needs more workspace");
  };
  return tuning->Choose(subject, std::move(own));
}

}  // namespace lockstep::engine::cuda
