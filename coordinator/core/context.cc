// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "job/meaning/defaults.h"

namespace lockstep::coordinator {

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp proto;
  const int64_t nanos = absl::ToUnixNanos(time);
  proto.set_seconds(nanos / 1000000000);
  proto.set_nanos(static_cast<int32_t>(nanos % 1000000000));
  return proto;
}

absl::Time FromProto(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

NodeDrain ToProto(const DrainOrder& order) {
  NodeDrain drain;
  drain.set_reason(order.reason);
  drain.set_user(order.user);
  *drain.mutable_since() = ToProto(order.since);
  return drain;
}

std::string DurationText(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds >= 120) return absl::StrFormat("%.3g min", seconds / 60);
  return absl::StrFormat("%.3g s", seconds);
}

std::string Count(int64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

absl::Duration FailureDetection(const Job& job) { return job::FailureDetection(job.spec()); }

absl::Duration StartTimeout(const Job& job) { return job::StartTimeout(job.spec()); }

int MaxRestarts(const Job& job) { return job::MaxRestarts(job.spec()); }

void AppendEvent(Context& context, const Job& job, JobEvent event) {
  *event.mutable_time() = ToProto(context.now);
  context.effects.events.push_back({job.id, std::move(event)});
}

void AppendNotice(Context& context, const Job& job, const std::string& text) {
  JobEvent event;
  event.set_notice(text);
  AppendEvent(context, job, std::move(event));
}

namespace {

// The place in an incarnation's name, "<job>.<place>.<life>"; -1: it has none.
int PlaceOf(const std::string& incarnation) {
  const size_t life = incarnation.rfind('.');
  if (life == std::string::npos || life == 0) return -1;
  const size_t place = incarnation.rfind('.', life - 1);
  int number = -1;
  if (place == std::string::npos ||
      !absl::SimpleAtoi(absl::string_view(incarnation).substr(place + 1, life - place - 1),
                        &number)) {
    return -1;
  }
  return number;
}

}  // namespace

void SetCheck(State& state, Job& job, absl::Time at) {
  if (job.next_check == at) return;
  if (job.next_check != absl::InfiniteFuture()) state.checks.erase({job.next_check, job.id});
  job.next_check = at;
  if (at != absl::InfiniteFuture()) state.checks.emplace(at, job.id);
}

void NoteBegun(State& state, const Job& job) {
  if (job.has_begun()) {
    state.begun.insert(job.id);
  } else {
    state.begun.erase(job.id);
  }
}

std::string FindMisplaced(const State& state) {
  for (const std::string& id : state.begun) {
    if (state.jobs.count(id) == 0) return id;
  }
  for (const auto& [id, job] : state.jobs) {
    if (job.has_begun() != (state.begun.count(id) != 0)) return id;
  }
  return "";
}

void RemoveJob(State& state, const std::string& job_id) {
  const auto found = state.jobs.find(job_id);
  if (found == state.jobs.end()) return;
  Job& job = found->second;
  SetCheck(state, job, absl::InfiniteFuture());
  state.slots -= job.noted_slots;
  state.job_of_request.erase(RequestName(job.request));
  state.owed_jobs.erase(job_id);
  state.begun.erase(job_id);
  state.look_at_dependencies = true;
  state.unsettled.jobs.erase(job_id);
  state.jobs.erase(found);
}

std::string RequestName(const SubmitJobRequest& request) {
  if (request.request_id().empty()) return "";
  return absl::StrCat(request.user(), "\n", request.request_id());
}

Job* FindJob(State& state, const std::string& job_id) {
  auto it = state.jobs.find(job_id);
  return it == state.jobs.end() ? nullptr : &it->second;
}

Worker* FindWorker(Job& job, const std::string& incarnation) {
  const auto place = static_cast<size_t>(PlaceOf(incarnation));
  if (place < job.slots.size()) {
    Slot& slot = job.slots[place];
    if (slot.worker && slot.worker->incarnation == incarnation) return &*slot.worker;
  }
  for (Slot& slot : job.slots) {
    if (slot.worker && slot.worker->incarnation == incarnation) return &*slot.worker;
  }
  return nullptr;
}

const Worker* FindWorker(const Job& job, const std::string& incarnation) {
  return FindWorker(const_cast<Job&>(job), incarnation);
}

Worker* FindFormer(Job& job, const std::string& incarnation) {
  for (Worker& worker : job.former) {
    if (worker.incarnation == incarnation) return &worker;
  }
  return nullptr;
}

const Worker* FindFormer(const Job& job, const std::string& incarnation) {
  return FindFormer(const_cast<Job&>(job), incarnation);
}

bool IsRankZero(const Job& job, const Worker& worker) {
  const auto& members = job.generation.message.members();
  if (members.empty()) return worker.slot == 0;
  return members[0].incarnation() == worker.incarnation;
}

bool AllGone(const Job& job) {
  return std::all_of(job.slots.begin(), job.slots.end(),
                     [](const Slot& slot) {
                       return slot.vacant() || slot.worker->gone() || slot.unplaced();
                     }) &&
         std::all_of(job.former.begin(), job.former.end(),
                     [](const Worker& worker) { return worker.gone(); });
}

}  // namespace lockstep::coordinator
