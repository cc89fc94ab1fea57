// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/offline.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/printable.h"
#include "common/status.h"
#include "engine/cuda/gpu_roofline.h"
#include "worker/commands/answers.h"
#include "worker/commands/compare.h"
#include "worker/commands/doctor.h"
#include "worker/commands/job_report.h"
#include "worker/setup/data_plane.h"

namespace lockstep::worker {
namespace {

// The launcher's exit codes (docs/exit_codes.md).
constexpr int kFailure = 1;
constexpr int kUsage = 2;
constexpr int kBadJobFile = 3;
constexpr int kCannotFit = 5;

constexpr char kOfCommandLine[] = "lockstep/command_line";

absl::Status AnswerPlan(const PlanRequest& request, bool json) {
  std::optional<engine::GpuFigures> gpu;
  if (!request.gpu().empty()) {
    absl::StatusOr<engine::GpuFigures> figures = engine::GpuFiguresOf(request.gpu());
    if (!figures.ok()) return OfCommandLine(figures.status());
    gpu = *std::move(figures);
  }
  LS_ASSIGN_OR_RETURN(const JobData data, OpenJobData(request.spec()));
  LS_ASSIGN_OR_RETURN(const CompiledJob compiled,
                      CompileJob(request.spec(), data, ExpectedPlace(request.spec())));
  std::string text;
  if (request.dump() == "text") {
    text = compiled.plan->DumpText();
  } else if (request.dump() == "dot") {
    text = compiled.plan->DumpDot();
  } else {
    const JobReport report = gpu.has_value()
                                 ? ReportOf(compiled, data.train->size(), *gpu)
                                 : ReportOf(compiled, data.train->size(), MeasureMachine());
    text = json ? ReportJson(report) : ReportText(report);
  }
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

int CodeOf(const absl::Status& status) {
  if (status.ok()) return 0;
  if (status.GetPayload(kOfCommandLine).has_value()) return kUsage;
  if (absl::IsInvalidArgument(status)) return kBadJobFile;
  return absl::IsResourceExhausted(status) ? kCannotFit : kFailure;
}

}  // namespace

absl::Status OfCommandLine(absl::Status status) {
  status.SetPayload(kOfCommandLine, absl::Cord());
  return status;
}

absl::Status ResultNotWritten(int error) {
  return absl::UnavailableError(
      absl::StrCat("the result could not be written to stdout: ", std::strerror(error)));
}

int ThreadsOf(const OfflineRequest& request) {
  switch (request.verb_case()) {
    case OfflineRequest::kPlan:
      return std::max(1, request.plan().spec().resources().cpus_per_proc());
    case OfflineRequest::kCompare:
      return std::max(1, request.compare().spec().resources().cpus_per_proc());
    case OfflineRequest::kEval:
      return std::max(1, request.eval().threads());
    case OfflineRequest::kPredict:
      return std::max(1, request.predict().threads());
    case OfflineRequest::kGenerate:
      return std::max(1, request.generate().threads());
    case OfflineRequest::kBenchCollectives:
    case OfflineRequest::kDoctor:
    case OfflineRequest::VERB_NOT_SET:
      break;
  }
  return 1;
}

int RunOffline(const OfflineRequest& request) {
  absl::Status status;
  bool differs = false;
  switch (request.verb_case()) {
    case OfflineRequest::kPlan:
      status = AnswerPlan(request.plan(), request.json());
      break;
    case OfflineRequest::kEval:
      status = AnswerEval(request.eval(), request.json());
      break;
    case OfflineRequest::kPredict:
      status = AnswerPredict(request.predict());
      break;
    case OfflineRequest::kCompare:
      status = AnswerCompare(request.compare(), request.json(), &differs);
      break;
    case OfflineRequest::kGenerate:
      status = AnswerGenerate(request.generate(), request.json());
      break;
    case OfflineRequest::kBenchCollectives:
      status = AnswerBenchCollectives(request.bench_collectives(), request.json());
      break;
    case OfflineRequest::kDoctor:
      differs = !AnswerDoctor(request.json());
      break;
    case OfflineRequest::VERB_NOT_SET:
      status = absl::InternalError("the request has no verb");
      break;
  }
  if (!status.ok()) {
    const std::string message(status.message());
    if (request.json()) {
      const JsonObject answer =
          JsonObject().Add("schema", 1).Add("ok", false).Add("error", message);
      std::printf("%s\n", answer.Done().c_str());
    }
    std::fprintf(stderr, "error: %s\n", PrintableLines(message).c_str());
  }
  // A flush tells nothing of what could not be written before it.
  const bool flushed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!flushed && status.ok()) {
    std::fprintf(stderr, "error: the result could not be written to stdout\n");
    return kFailure;
  }
  return status.ok() && differs ? kFailure : CodeOf(status);
}

}  // namespace lockstep::worker
