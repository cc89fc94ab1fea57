// SPDX-License-Identifier: Apache-2.0
// What the rules of one step share: the state, the time, the effects so far, and what was touched
// since the state was last settled.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_CONTEXT_H_
#define LOCKSTEP_COORDINATOR_CORE_CONTEXT_H_

#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/state.h"

namespace lockstep::coordinator {

struct Context {
  Context(State& state_of_step, absl::Time time, Effects& effects_of_step)
      : state(state_of_step), now(time), effects(effects_of_step) {}

  State& state;
  absl::Time now;
  Effects& effects;
  std::set<std::string>& touched_jobs = state.unsettled.jobs;
  std::set<std::string>& changed_nodes = state.unsettled.nodes;
  std::vector<std::string>& wish_nodes = state.unsettled.wish_nodes;
  bool& schedule = state.unsettled.schedule;
};

google::protobuf::Timestamp ToProto(absl::Time time);
absl::Time FromProto(const google::protobuf::Timestamp& time);
absl::Duration FromProto(const google::protobuf::Duration& duration);
NodeDrain ToProto(const DrainOrder& order);
// "1.5 s", "10 min": a duration for a sentence.
std::string DurationText(absl::Duration duration);
// "1 slot", "4 slots".
std::string Count(int64_t count, const std::string& noun);

// The job's failure_detection, and its start_timeout; their defaults where the spec has none.
absl::Duration FailureDetection(const Job& job);
absl::Duration StartTimeout(const Job& job);
// Failures without progress that the job survives.
int MaxRestarts(const Job& job);

// Appends an event for the job's followers, stamped with the time.
void AppendEvent(Context& context, const Job& job, JobEvent event);
void AppendNotice(Context& context, const Job& job, const std::string& text);

// When the job is to be looked at again though nothing happens; InfiniteFuture: never.
void SetCheck(State& state, Job& job, absl::Time at);
// Keeps State::begun right after a change of the job's state.
void NoteBegun(State& state, const Job& job);
// A job that State::begun lacks, or has and should not; empty: none. For tests.
std::string FindMisplaced(const State& state);
// Takes the job out of the state and of what finds it there. Its rows are another matter.
void RemoveJob(State& state, const std::string& job_id);
// By what a repeated request is known as the one that made a job; empty: it is not.
std::string RequestName(const SubmitJobRequest& request);

// Null: no such one.
Job* FindJob(State& state, const std::string& job_id);
Worker* FindWorker(Job& job, const std::string& incarnation);
const Worker* FindWorker(const Job& job, const std::string& incarnation);
// A life that was replaced.
Worker* FindFormer(Job& job, const std::string& incarnation);
const Worker* FindFormer(const Job& job, const std::string& incarnation);
// Returns whether the worker is a member of the newest generation, and whether it is its rank 0.
inline bool IsMember(const Job& job, const Worker& worker) {
  return worker.member_of != 0 && worker.member_of == job.generation.message.generation();
}
bool IsRankZero(const Job& job, const Worker& worker);
inline bool HasActiveGeneration(const Job& job) {
  return job.generation.message.generation() != 0 && !job.generation.aborted;
}
// Returns whether the worker stands between generations: it said so, and what it said is not from
// before it was made a member of the newest generation.
inline bool StandsBetween(const Job& job, const Worker& worker) {
  if (!worker.ready) return false;
  return !IsMember(job, worker) ||
         worker.ready->highest_generation() >= job.generation.message.generation();
}
// Returns whether no process of the job is left.
bool AllGone(const Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_CONTEXT_H_
