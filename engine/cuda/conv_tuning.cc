// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/conv_tuning.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/half.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/cuda/conv_cudnn.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/module.h"

namespace lockstep::engine::cuda {
namespace {

// Made values repeat after so many, a prime: no two rows of an operand are the same.
constexpr size_t kPeriod = 1048573;
constexpr size_t kShift = 65537;  // between operands
constexpr size_t kOperands = 5;
// Of a larger result so many values are compared, in parts from its first to its last.
constexpr int64_t kCompared = int64_t{1} << 22;
constexpr int64_t kParts = 16;

const char* NameOf(Type type) {
  if (type == Type::kBF16) return "bf16";
  return type == Type::kF16 ? "f16" : "f32";
}

// A multiple of 2^-12 in [-1, 1), scattered by a multiplicative hash.
float MadeValue(size_t i) {
  const uint64_t mixed = (i + 1) * uint64_t{0x9E3779B97F4A7C15};
  return static_cast<float>(static_cast<int64_t>(mixed >> 51) - 4096) / 4096.0f;
}

float ValueOf(const std::byte* data, Type type, size_t i) {
  if (type == Type::kF32) {
    float value;
    std::memcpy(&value, data + i * sizeof(value), sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + i * sizeof(bits), sizeof(bits));
  return type == Type::kBF16 ? BFloat16{bits}.ToFloat() : Float16{bits}.ToFloat();
}

void PutValue(std::byte* data, Type type, size_t i, float value) {
  if (type == Type::kF32) {
    std::memcpy(data + i * sizeof(value), &value, sizeof(value));
    return;
  }
  const uint16_t bits =
      type == Type::kBF16 ? BFloat16::FromFloat(value).bits : Float16::FromFloat(value).bits;
  std::memcpy(data + i * sizeof(bits), &bits, sizeof(bits));
}

// Products that are added up in an element of the result.
int64_t TermsOf(const ConvPlan& plan) {
  const ConvGeometry& g = plan.g;
  if (plan.part == ConvPart::kForward) return plan.patch();
  return plan.part == ConvPart::kInput ? g.taps() * g.group_filters() : g.images * plan.pixels();
}

}  // namespace

std::string DescribeConvolution(const Operands& o, const Node& node, const ConvPlan& plan,
                                bool tf32) {
  const ConvGeometry& g = plan.g;
  const Window& w = g.window;
  const char* const parts[] = {"conv", "conv-input", "conv-weight"};
  std::string text =
      absl::StrCat(parts[static_cast<int>(plan.part)], ":", g.images, "x", g.height, "x", g.width,
                   "x", g.channels, ":", g.filters, "x", w.kernel[0], "x", w.kernel[1]);
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

ConvTuning::ConvTuning(Device* device, std::shared_ptr<const Cudnn> cudnn, ProductTuning* tuning,
                       const CudaContext& context, const Stopwatch& stopwatch)
    : device_(*device),
      cudnn_(std::move(cudnn)),
      tuning_(*tuning),
      context_(context),
      stopwatch_(stopwatch),
      name_(absl::StrCat(tuning->name(), ", ", cudnn_->name())) {}

absl::StatusOr<std::unique_ptr<ConvTuning>> ConvTuning::Open(Device* device,
                                                             std::shared_ptr<const Cudnn> cudnn,
                                                             ProductTuning* tuning,
                                                             const CudaContext& context) {
  LS_ASSIGN_OR_RETURN(const Stopwatch stopwatch, Stopwatch::Make(device));
  return std::unique_ptr<ConvTuning>(
      new ConvTuning(device, std::move(cudnn), tuning, context, stopwatch));
}

absl::StatusOr<CudaKernel> ConvTuning::Choose(const Operands& o, const Node& node,
                                              const ConvPlan& plan, bool tf32, CudaKernel own) {
  if (!CanBeCudnn(o, plan)) return own;
  const Subject subject{o, node, plan, tf32, DescribeConvolution(o, node, plan, tf32)};
  AlgorithmTable& table = tuning_.table();
  const ConvAlgorithm* known = table.FindConvolution(name_, subject.name);
  if (known == nullptr && !tuning_.measures()) return own;
  const auto convolution = CudnnConvolution::Make(cudnn_, plan, tf32);
  if (known == nullptr) {
    ConvAlgorithm chosen;
    if (convolution.ok()) {
      LS_ASSIGN_OR_RETURN(chosen, Measure(subject, *convolution, own));
      ++measured_;
    }
    table.Set(name_, subject.name, chosen);
    known = table.FindConvolution(name_, subject.name);
  }
  if (known->number == ConvAlgorithm::kOwn) return own;
  if (!convolution.ok() || !(*convolution)->Has(*known)) {
    return absl::InternalError(absl::StrCat(cudnn_->name(), " has no algorithm ", known->number,
                                            " for ", subject.name, ", which ", tuning_.last_file(),
                                            " or the run's own file says: remove its line there"));
  }
  return PrepareCudnn(o, node, plan, *convolution, *known);
}

absl::StatusOr<ConvAlgorithm> ConvTuning::Measure(
    const Subject& subject, const std::shared_ptr<const CudnnConvolution>& convolution,
    const CudaKernel& own) {
  Code refused = 0;
  LS_ASSIGN_OR_RETURN(const Trial expected, Run(subject.operands, own, &refused));
  LS_RETURN_IF_ERROR(device_.Check(refused, subject.name));
  std::vector<ConvAlgorithm> algorithms = {{}};
  std::vector<CudaKernel> kernels = {own};
  for (const ConvAlgorithm& algorithm :
       convolution->Algorithms(CudnnWorkspaceBytes(subject.plan))) {
    CudaKernel kernel =
        PrepareCudnn(subject.operands, subject.node, subject.plan, convolution, algorithm);
    LS_ASSIGN_OR_RETURN(const std::string wrong, Examine(subject, kernel, expected));
    if (!wrong.empty()) {
      LS_LOG_WARNING << cudnn_->name() << ", algorithm " << algorithm.number << " is left out for "
                     << subject.name << ": " << wrong;
      continue;
    }
    algorithms.push_back(algorithm);
    kernels.push_back(std::move(kernel));
  }
  if (kernels.size() == 1) return algorithms[0];
  std::vector<Stopwatch::Way> ways;
  for (const CudaKernel& kernel : kernels) {
    ways.emplace_back([&] { return kernel(context_); });
  }
  LS_ASSIGN_OR_RETURN(const Stopwatch::Result result,
                      stopwatch_.Compare(ways, "measuring a convolution"));
  const ConvAlgorithm& best = algorithms[result.quickest];
  LS_LOG_DEBUG << subject.name << ": " << result.milliseconds[result.quickest] << " ms by "
               << (result.quickest == 0 ? "our own kernels"
                                        : absl::StrCat("cuDNN's algorithm ", best.number))
               << ", " << result.milliseconds[0] << " ms by our own";
  return best;
}

absl::StatusOr<std::string> ConvTuning::Examine(const Subject& subject, const CudaKernel& kernel,
                                                const Trial& expected) {
  Trial first;
  for (const bool again : {false, true}) {
    Code refused = 0;
    LS_ASSIGN_OR_RETURN(Trial trial, Run(subject.operands, kernel, &refused));
    if (refused != 0) return absl::StrCat("error ", refused - kCudnnErrors);
    if (again && trial.bytes != first.bytes) return "a second run has other bits";
    first = std::move(trial);
  }
  return Disagreement(first.values, expected.values, TypeOf(subject.operands.output().dtype),
                      TermsOf(subject.plan), subject.tf32);
}

absl::StatusOr<ConvTuning::Trial> ConvTuning::Run(const Operands& o, const CudaKernel& kernel,
                                                  Code* refused) {
  const View out = o.Out(context_);
  const int64_t count = o.output().elements();
  // What is not written shows.
  LS_RETURN_IF_ERROR(Fill(out, count, kOperands - 1));
  for (size_t i = 0; o.has(i); ++i) {
    LS_RETURN_IF_ERROR(Fill(o.In(context_, i), o.input(i).elements(), i));
  }
  Trial trial;
  *refused = kernel(context_);
  if (*refused != 0) return trial;
  const bool whole = count <= kCompared;
  const int64_t part = whole ? count : kCompared / kParts;
  const int64_t parts = whole ? 1 : kParts;
  const size_t bytes = static_cast<size_t>(part) * BytesOf(out.type);
  trial.bytes.resize(static_cast<size_t>(parts) * bytes);
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t first = parts == 1 ? 0 : (count - part) / (parts - 1) * p;
    LS_RETURN_IF_ERROR(device_.Copy(trial.bytes.data() + static_cast<size_t>(p) * bytes,
                                    From(out, first).data, bytes, device_.compute()));
  }
  LS_RETURN_IF_ERROR(device_.Wait(device_.compute()));
  trial.values.resize(static_cast<size_t>(parts * part));
  for (size_t i = 0; i < trial.values.size(); ++i) {
    trial.values[i] = ValueOf(trial.bytes.data(), out.type, i);
  }
  return trial;
}

absl::Status ConvTuning::Fill(const View& view, int64_t count, size_t which) {
  const std::byte* pattern = Pattern(view.type).data() + which * kShift * BytesOf(view.type);
  auto* to = static_cast<std::byte*>(view.data);
  const size_t bytes = static_cast<size_t>(count) * BytesOf(view.type);
  size_t done = std::min(bytes, kPeriod * BytesOf(view.type));
  LS_RETURN_IF_ERROR(device_.Copy(to, pattern, done, device_.compute()));
  while (done < bytes) {
    const size_t more = std::min(done, bytes - done);
    LS_RETURN_IF_ERROR(device_.Copy(to + done, to, more, device_.compute()));
    done += more;
  }
  return absl::OkStatus();
}

const std::vector<std::byte>& ConvTuning::Pattern(Type type) {
  std::vector<std::byte>& pattern = patterns_[static_cast<int>(type)];
  if (!pattern.empty()) return pattern;
  const size_t count = kPeriod + kOperands * kShift;
  pattern.resize(count * BytesOf(type));
  for (size_t i = 0; i < count; ++i) PutValue(pattern.data(), type, i, MadeValue(i % kPeriod));
  return pattern;
}

}  // namespace lockstep::engine::cuda
