// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/queue_requests.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/already_so.h"
#include "coordinator/core/access.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/questions.h"

namespace lockstep::coordinator {
namespace {

constexpr int kMostReferences = 1000;
// Those of the jobs waited for that have ended are taken out when they are such a part of all, or
// all are few: the job's row, which has all of them, is written anew each time.
constexpr size_t kOnePartIn = 8;
constexpr size_t kFew = 64;

bool HasEnded(const State& state, const std::string& id) {
  const auto job = state.jobs.find(id);
  return job == state.jobs.end() || job->second.final();
}

bool HasSucceeded(const State& state, const std::string& id) {
  const auto job = state.jobs.find(id);
  return job != state.jobs.end() && job->second.state == SUCCEEDED;
}

// Takes out whom the job need not wait for any more. Returns whether there was any.
bool DropEnded(Context& context, Job& job) {
  const size_t dropped =
      std::erase_if(job.after,
                    [&](const std::string& id) { return HasSucceeded(context.state, id); }) +
      std::erase_if(job.after_any,
                    [&](const std::string& id) { return HasEnded(context.state, id); });
  if (dropped > 0) context.touched_jobs.insert(job.id);
  if (dropped > 0 && job.after.empty() && job.after_any.empty()) job.ready_since = context.now;
  return dropped > 0;
}

// The job, or of the first one of an array all.
std::vector<const Job*> Meant(const State& state, const std::string& id) {
  const Job& job = state.jobs.at(id);
  if (job.request.array().id() != id) return {&job};
  std::vector<const Job*> all;
  for (const auto& [other_id, other] : state.jobs) {
    if (other.request.array().id() == id) all.push_back(&other);
  }
  return all;
}

// The job that is to come before: one of the user's own first, as wherever users name jobs.
absl::StatusOr<std::string> FindBefore(const State& state, const std::string& reference,
                                       const std::string& user) {
  if (!user.empty()) {
    absl::StatusOr<std::string> own = FindJobId(state, reference, user);
    if (!absl::IsNotFound(own.status())) return own;
  }
  return FindJobId(state, reference);
}

// Says that the job has not succeeded; why, to those who may see all about it.
absl::Status HasNotSucceeded(const Job& job, const Requester& who) {
  std::string text = absl::StrCat("job ", job.id, ", which has to succeed before, has not");
  const absl::Status may =
      CheckOwner("Coordinator/DescribeJob", who, job.request.user(), "the job");
  if (may.ok()) absl::StrAppend(&text, ": ", job.reason);
  return absl::FailedPreconditionError(text);
}

absl::Status TakeReferences(const State& state, const SubmitJobRequest& request,
                            const google::protobuf::RepeatedPtrField<std::string>& references,
                            bool must_succeed, std::vector<std::string>* ids) {
  if (references.size() > kMostReferences) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job waits for ", kMostReferences, " others at most"));
  }
  for (const std::string& reference : references) {
    const absl::StatusOr<std::string> id = FindBefore(state, reference, request.user());
    if (!id.ok()) return id.status();
    for (const Job* job : Meant(state, *id)) {
      if (!job->final()) {
        ids->push_back(job->id);
      } else if (must_succeed && job->state != SUCCEEDED) {
        return HasNotSucceeded(*job, request.by());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TakeQueueRequest(const State& state, Job& job) {
  const SubmitJobRequest& request = job.request;
  const ArrayElement& array = request.array();
  if (array.index() < 0 || array.at_once() < 0) {
    return absl::InvalidArgumentError("an array's numbers are not negative");
  }
  job.held = request.hold();
  absl::Status status = TakeReferences(state, request, request.after(), true, &job.after);
  if (status.ok())
    status = TakeReferences(state, request, request.after_any(), false, &job.after_any);
  if (!status.ok()) return status;
  if (!request.has_array()) return absl::OkStatus();
  if (array.id().empty()) {
    job.request.mutable_array()->set_id(job.id);
  } else if (state.jobs.count(array.id()) == 0) {
    return absl::NotFoundError(absl::StrCat("there is no array ", array.id()));
  } else {
    return CheckOwner("Coordinator/HoldJob", request.by(), state.jobs.at(array.id()).request.user(),
                      absl::StrCat("array ", array.id()));
  }
  return absl::OkStatus();
}

absl::Status HoldJob(Context& context, const HoldRequested& event) {
  const absl::StatusOr<std::string> id =
      FindJobFor(context.state, event.job_id, "Coordinator/HoldJob", event.by);
  if (!id.ok()) return id.status();
  Job& job = context.state.jobs.at(*id);
  const bool released = event.release && !job.held;
  if (job.state != PENDING || job.ending) {
    const std::string why =
        absl::StrCat("job ", job.id, " does not wait for a start: ", job.reason);
    return released ? AlreadySoError(why) : absl::FailedPreconditionError(why);
  }
  if (released) return AlreadySoError(absl::StrCat("job ", job.id, " is not held"));
  job.held = !event.release;
  if (event.release) job.ready_since = context.now;
  context.touched_jobs.insert(job.id);
  context.schedule = true;
  return absl::OkStatus();
}

void LookAtDependencies(Context& context, Job& job) {
  const size_t all = job.after.size() + job.after_any.size();
  size_t ended = 0;
  std::string failed;
  for (const std::string& id : job.after) {
    const bool has_ended = HasEnded(context.state, id);
    ended += has_ended;
    if (has_ended && !HasSucceeded(context.state, id)) failed = id;
  }
  for (const std::string& id : job.after_any) ended += HasEnded(context.state, id);
  if (!failed.empty()) {
    BeginEnding(context, job, CANCELLED,
                absl::StrCat("job ", failed, " had to succeed before, and has not"), 1);
    Advance(context, job);
  } else if (ended > 0 && (all <= kFew || ended * kOnePartIn >= all)) {
    DropEnded(context, job);
  }
}

void LetGoOfEnded(Context& context) {
  for (auto& [id, job] : context.state.jobs) {
    if (job.state != PENDING || (job.after.empty() && job.after_any.empty())) continue;
    if (!DropEnded(context, job)) continue;
    CollectRows(context, {id});
    // It may be ready now, or is to say that it waits for fewer.
    context.state.schedule_at = std::min(context.state.schedule_at, context.now);
  }
}

}  // namespace lockstep::coordinator
