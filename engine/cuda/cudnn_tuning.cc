// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/cudnn_tuning.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/half.h"
#include "common/log.h"
#include "common/philox.h"
#include "common/status.h"
#include "engine/cuda/gemm.h"
#include "engine/cuda/module.h"

namespace lockstep::engine::cuda {
namespace {

// Made values repeat after so many, a prime: no two rows of an operand are the same.
constexpr size_t kPeriod = 1048573;
constexpr size_t kShift = 65537;  // between operands
constexpr size_t kOperands = 8;
// Of a larger output so many values are compared, in parts from its first to its last.
constexpr int64_t kCompared = int64_t{1} << 22;
constexpr int64_t kParts = 16;

// A multiple of 2^-12 in [-1, 1).
float MadeValue(size_t i) {
  return static_cast<float>(static_cast<int64_t>(MixBits(i) >> 51) - 4096) / 4096.0f;
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

// "attention" of "attention:2x3x21x16:144:bf16".
std::string KindOf(const std::string& name) { return name.substr(0, name.find(':')); }

void PutValue(std::byte* data, Type type, size_t i, float value) {
  if (type == Type::kF32) {
    std::memcpy(data + i * sizeof(value), &value, sizeof(value));
    return;
  }
  const uint16_t bits =
      type == Type::kBF16 ? BFloat16::FromFloat(value).bits : Float16::FromFloat(value).bits;
  std::memcpy(data + i * sizeof(bits), &bits, sizeof(bits));
}

}  // namespace

CudnnTuning::CudnnTuning(Device* device, std::shared_ptr<const Cudnn> cudnn, ProductTuning* tuning,
                         const CudaContext& context, const Stopwatch& stopwatch)
    : device_(*device),
      cudnn_(std::move(cudnn)),
      tuning_(*tuning),
      context_(context),
      stopwatch_(stopwatch),
      name_(absl::StrCat(tuning->name(), ", ", cudnn_->name())) {}

absl::StatusOr<std::unique_ptr<CudnnTuning>> CudnnTuning::Open(Device* device,
                                                               std::shared_ptr<const Cudnn> cudnn,
                                                               ProductTuning* tuning,
                                                               const CudaContext& context) {
  LS_ASSIGN_OR_RETURN(const Stopwatch stopwatch, Stopwatch::Make(device));
  return std::unique_ptr<CudnnTuning>(
      new CudnnTuning(device, std::move(cudnn), tuning, context, stopwatch));
}

absl::StatusOr<CudaKernel> CudnnTuning::Choose(const Subject& subject, CudaKernel own) {
  LS_ASSIGN_OR_RETURN(Way way, Decide(subject, std::move(own)));
  const std::string kind = KindOf(subject.name);
  if (way.algorithm.own()) {
    CountOwn(kind, subject.own);
  } else {
    ++chosen_[kind + " by cuDNN"];
  }
  return std::move(way.kernel);
}

absl::StatusOr<CudnnTuning::Way> CudnnTuning::Decide(const Subject& subject, CudaKernel own) {
  AlgorithmTable& table = tuning_.table();
  const CudnnAlgorithm* known = table.FindCudnn(name_, subject.name);
  if (known == nullptr) {
    if (!tuning_.measures()) return Way{{}, std::move(own)};
    const absl::StatusOr<std::vector<CudnnAlgorithm>> algorithms = subject.algorithms();
    if (!algorithms.ok()) {
      WarnOfRefusal(subject, algorithms.status());
      table.Set(name_, subject.name, CudnnAlgorithm{CudnnAlgorithm::kRefused});
      return Way{{}, std::move(own)};
    }
    LS_ASSIGN_OR_RETURN(Way chosen, Measure(subject, *algorithms, std::move(own)));
    table.Set(name_, subject.name, chosen.algorithm);
    tuning_.NoteMeasured();
    return chosen;
  }
  if (known->own()) return Way{{}, std::move(own)};
  absl::StatusOr<CudaKernel> kernel = subject.prepare(*known);
  if (kernel.ok()) return Way{*known, *std::move(kernel)};
  return absl::InternalError(absl::StrCat(cudnn_->name(), " has no algorithm ", known->number,
                                          " for ", subject.name, ", which ", tuning_.last_file(),
                                          " or the run's own file says (",
                                          kernel.status().message(), "): remove its line there"));
}

void CudnnTuning::WarnOfRefusal(const Subject& subject, const absl::Status& why) {
  const std::string kind = KindOf(subject.name);
  if (!warned_.insert(kind).second) return;
  const std::string no_compiler = subject.graph ? cudnn_->no_compiler() : "";
  LS_LOG_WARNING << cudnn_->name() << " offers nothing for " << kind << " (" << subject.name
                 << "): " << why.message() << "; our own kernels do it"
                 << (no_compiler.empty() ? "" : "; ") << no_compiler;
}

absl::StatusOr<CudnnTuning::Way> CudnnTuning::Measure(const Subject& subject,
                                                      const std::vector<CudnnAlgorithm>& algorithms,
                                                      CudaKernel own) {
  std::vector<Way> ways = {{{}, std::move(own)}};
  Trial expected;
  ++measured_;
  for (const CudnnAlgorithm& algorithm : algorithms) {
    if (expected.outputs.empty()) {
      Code refused = 0;
      LS_ASSIGN_OR_RETURN(expected, Run(subject, ways[0].kernel, &refused));
      LS_RETURN_IF_ERROR(device_.Check(refused, subject.name));
    }
    absl::StatusOr<CudaKernel> kernel = subject.prepare(algorithm);
    std::string wrong(kernel.status().message());
    if (kernel.ok()) {
      LS_ASSIGN_OR_RETURN(wrong, Examine(subject, *kernel, expected));
    }
    if (wrong.empty()) {
      ways.push_back({algorithm, *std::move(kernel)});
    } else {
      LS_LOG_WARNING << cudnn_->name() << ", algorithm " << algorithm.number << " is left out for "
                     << subject.name << ": " << wrong;
    }
  }
  if (ways.size() == 1) return std::move(ways[0]);
  std::vector<Stopwatch::Way> timed;
  for (const Way& way : ways) {
    timed.emplace_back([&] { return way.kernel(context_); });
  }
  LS_ASSIGN_OR_RETURN(const Stopwatch::Result result,
                      stopwatch_.Compare(timed, "measuring what cuDNN may do"));
  Way& best = ways[result.quickest];
  LS_LOG_DEBUG << subject.name << ": " << result.milliseconds[result.quickest] << " ms by "
               << (result.quickest == 0 ? "our own kernels"
                                        : absl::StrCat("cuDNN's algorithm ", best.algorithm.number))
               << ", " << result.milliseconds[0] << " ms by our own";
  return std::move(best);
}

absl::StatusOr<std::string> CudnnTuning::Examine(const Subject& subject, const CudaKernel& kernel,
                                                 const Trial& expected) {
  Trial first;
  for (const bool again : {false, true}) {
    Code refused = 0;
    LS_ASSIGN_OR_RETURN(Trial trial, Run(subject, kernel, &refused));
    if (refused != 0) return absl::StrCat("error ", refused - kCudnnErrors);
    if (again && trial.outputs != first.outputs) return "a second run has other bits";
    first = std::move(trial);
  }
  for (size_t i = 0; i < subject.outputs; ++i) {
    const std::string wrong =
        subject.disagreement(i, first.outputs[i].values, expected.outputs[i].values);
    if (!wrong.empty())
      return subject.outputs == 1 ? wrong : absl::StrCat("output ", i, ": ", wrong);
  }
  return "";
}

absl::StatusOr<CudnnTuning::Trial> CudnnTuning::Run(const Subject& subject,
                                                    const CudaKernel& kernel, Code* refused) {
  const Operands& o = subject.operands;
  // What is not written shows.
  for (size_t i = 0; i < subject.outputs; ++i) {
    LS_RETURN_IF_ERROR(Fill(o.Out(context_, i), o.output(i).elements(), kOperands - 1));
  }
  for (size_t i = 0; o.has(i); ++i) {
    LS_RETURN_IF_ERROR(Fill(o.In(context_, i), o.input(i).elements(), i));
  }
  Trial trial;
  *refused = kernel(context_);
  if (*refused != 0) return trial;
  for (size_t i = 0; i < subject.outputs; ++i) {
    LS_ASSIGN_OR_RETURN(Trial::Output output,
                        Read(o.Out(context_, i), o.output(i).elements(), subject.granule));
    trial.outputs.push_back(std::move(output));
  }
  return trial;
}

absl::StatusOr<CudnnTuning::Trial::Output> CudnnTuning::Read(const View& view, int64_t count,
                                                             int64_t granule) {
  const bool whole = count <= kCompared;
  const int64_t part = whole ? count : kCompared / kParts / granule * granule;
  const int64_t parts = whole ? 1 : kParts;
  const size_t bytes = static_cast<size_t>(part) * BytesOf(view.type);
  Trial::Output output;
  output.bytes.resize(static_cast<size_t>(parts) * bytes);
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t first = parts == 1 ? 0 : (count - part) / (parts - 1) * p / granule * granule;
    LS_RETURN_IF_ERROR(device_.Copy(output.bytes.data() + static_cast<size_t>(p) * bytes,
                                    From(view, first).data, bytes, device_.compute()));
  }
  LS_RETURN_IF_ERROR(device_.Wait(device_.compute()));
  output.values.resize(static_cast<size_t>(parts * part));
  for (size_t i = 0; i < output.values.size(); ++i) {
    output.values[i] = ValueOf(output.bytes.data(), view.type, i);
  }
  return output;
}

absl::Status CudnnTuning::Fill(const View& view, int64_t count, size_t which) {
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

const std::vector<std::byte>& CudnnTuning::Pattern(Type type) {
  std::vector<std::byte>& pattern = patterns_[static_cast<int>(type)];
  if (!pattern.empty()) return pattern;
  const size_t count = kPeriod + kOperands * kShift;
  pattern.resize(count * BytesOf(type));
  for (size_t i = 0; i < count; ++i) PutValue(pattern.data(), type, i, MadeValue(i % kPeriod));
  return pattern;
}

}  // namespace lockstep::engine::cuda
