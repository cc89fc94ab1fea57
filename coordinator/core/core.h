// SPDX-License-Identifier: Apache-2.0
// The coordinator as a function: what happened and when -> what to do. No I/O, no clock, no
// threads, no randomness inside, so the same code runs in the service, in scenario tests and in
// simulations. Thread-safety: thread-compatible; the caller guards the state.
#ifndef LOCKSTEP_COORDINATOR_CORE_CORE_H_
#define LOCKSTEP_COORDINATOR_CORE_CORE_H_

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// ---- events
struct Submitted {
  std::string job_id;  // unused so far; letters, digits and '-'
  SubmitJobRequest request;
};
struct CancelRequested {
  std::string job_id;
  bool kill = false;
};
struct ScaleRequested {
  std::string job_id;
  int workers = 0;
};
struct AgentSaid {
  SessionId session = 0;
  AgentMessage message;
};
struct AgentGone {
  SessionId session = 0;
};
struct WorkerSaid {
  SessionId session = 0;
  WorkerMessage message;
};
struct WorkerGone {
  SessionId session = 0;
};
// Time has passed.
struct Tick {};
// What was decided is not said yet, because it is not durable: from now on time counts against
// nobody.
struct Held {};
// All that was decided has been said: time counts again.
struct Released {};
using Event = std::variant<Submitted, CancelRequested, ScaleRequested, AgentSaid, AgentGone,
                           WorkerSaid, WorkerGone, Tick, Held, Released>;

// ---- effects
struct ToAgent {
  SessionId session = 0;
  AgentCommand command;
  bool close = false;  // end the stream after it
};
struct ToWorker {
  SessionId session = 0;
  WorkerCommand command;
  bool close = false;
};
// For followers; the sequence number is the receiver's.
struct Append {
  std::string job_id;
  JobEvent event;
};
// A row of the journal: the whole new value under its key.
struct Row {
  std::string key;
  std::string value;
  bool erased = false;  // there is no such row any more
};

// To be carried out in this order: rows are safe before anything is said.
struct Effects {
  std::vector<Row> rows;
  // The answer to Submitted, CancelRequested and ScaleRequested.
  absl::Status reply;
  SubmitJobResponse submitted;
  ScaleJobResponse scaled;
  std::vector<std::string> new_jobs;        // made by this event
  std::vector<std::string> forgotten_jobs;  // nobody can ask for them any more
  std::vector<ToAgent> to_agents;
  std::vector<ToWorker> to_workers;
  std::vector<Append> events;
  // A Tick is due then at the latest.
  absl::Time wake_at = absl::InfiniteFuture();
};

// Changes `state` by one event. `now` never goes back.
Effects Step(State& state, const Event& event, absl::Time now);

// Appends the effects of a later step; its replies are left out.
void AppendEffects(Effects& effects, Effects later);

// The rows of `effects`, which are those of all steps that are not saved yet, could not be written.
// What happened to agents and workers stays in the state, as it did happen; jobs submitted by these
// steps were never accepted. The rows are written again by the next step, and commands that follow
// from the state are derived again with them. `effects` keeps what is derived from no state
// (answers to single messages, events for followers): the caller holds it back until a later step
// is saved. A Tick is due at `wake_at`.
void SaveFailed(State& state, Effects& effects, absl::Time now);

// The state of a coordinator that was away, from all rows of its journal. Nobody is connected; the
// time away, and that which everybody needs to come back, counts against no worker and no node. The
// first step may be taken at `now`.
// Errors: DataLoss when a row cannot be read; says which.
absl::StatusOr<State> Restore(const std::vector<Row>& rows, const Options& options, absl::Time now);

// ---- questions; Errors: NotFound
absl::StatusOr<DescribeJobResponse> DescribeJob(const State& state, const std::string& job_id);
ListJobsResponse ListJobs(const State& state, bool include_ended);
GetClusterResponse GetCluster(const State& state);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_CORE_H_
