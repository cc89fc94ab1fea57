// SPDX-License-Identifier: Apache-2.0
#include "job/meaning/defaults.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep::job {
namespace {

absl::Duration DurationOr(const google::protobuf::Duration& duration, absl::Duration fallback) {
  const absl::Duration value =
      absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
  return value > absl::ZeroDuration() ? value : fallback;
}

// Here nothing is as good as any time.
absl::Duration GraceOr(const JobSpec& spec, absl::Duration fallback) {
  if (!spec.preemption().has_grace()) return fallback;
  return DurationOr(spec.preemption().grace(), absl::ZeroDuration());
}

absl::StatusOr<Every> EveryOf(const char* key, const std::string& text, const char* fallback) {
  absl::StatusOr<Every> every = ParseEvery(text.empty() ? fallback : text);
  if (every.ok()) return every;
  return absl::InvalidArgumentError(
      absl::StrCat("'", key, "' is '", text, "': ", every.status().message(), " or 'never'"));
}

}  // namespace

absl::Duration FailureDetection(const JobSpec& spec) {
  return DurationOr(spec.failure_detection(), kDefaultFailureDetection);
}

absl::Duration StartTimeout(const JobSpec& spec) {
  return DurationOr(spec.start_timeout(), kDefaultStartTimeout);
}

int MaxRestarts(const JobSpec& spec) {
  if (spec.restart().has_max_restarts()) return spec.restart().max_restarts();
  return spec.has_run() ? kDefaultCommandRestarts : kDefaultMaxRestarts;
}

absl::Duration CommandGrace(const JobSpec& spec) { return GraceOr(spec, kDefaultCommandGrace); }

absl::Duration LeaveGrace(const JobSpec& spec) { return GraceOr(spec, kDefaultLeaveGrace); }

int MostUsefulWorkers(const JobSpec& spec) {
  return spec.has_train() ? spec.train().shards() : std::numeric_limits<int32_t>::max();
}

absl::Duration TimeLimit(const JobSpec& spec) {
  return DurationOr(spec.time_limit(), absl::InfiniteDuration());
}

double DropoutRate(const DropoutLayer& layer) {
  return layer.has_rate() ? layer.rate() : kDefaultDropoutRate;
}

int64_t EvalBlockOfTokens(int64_t length) {
  return std::max<int64_t>(1, 4096 / std::max<int64_t>(1, length));
}

absl::StatusOr<Every> EvalEvery(const JobSpec& spec) {
  return EveryOf("train.eval.every", spec.train().eval().every(), kDefaultEvalEvery);
}

absl::StatusOr<Every> SaveEvery(const JobSpec& spec) {
  return EveryOf("checkpoint.every", spec.checkpoint().every(), "never");
}

absl::StatusOr<Every> VerifyEvery(const JobSpec& spec) {
  return EveryOf("verify_replicas", spec.verify_replicas(), "never");
}

}  // namespace lockstep::job
