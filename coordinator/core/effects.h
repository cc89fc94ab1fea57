// SPDX-License-Identifier: Apache-2.0
// What is to be done: the outputs of the core (core.h).
// Thread-safety: plain data.
#ifndef LOCKSTEP_COORDINATOR_CORE_EFFECTS_H_
#define LOCKSTEP_COORDINATOR_CORE_EFFECTS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/session_id.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

struct ToAgent {
  SessionId session = 0;
  AgentCommand command;
  bool close = false;  // end the stream after it
  // Those of the command's desired workers, in their order, which it lacks: a job's is the same for
  // all of its workers.
  std::vector<std::shared_ptr<const JobSpec>> specs = {};
};
struct ToWorker {
  SessionId session = 0;
  WorkerCommand command;
  bool close = false;
  // If there, the command's generation, which is large and the same for all members.
  std::shared_ptr<const Generation> generation = {};
};
// The command with its generation or its specs.
WorkerCommand Whole(ToWorker message);
AgentCommand Whole(ToAgent message);
// Returns whether who is told `newer` need not be told `older` any more, which came before it: what
// is wished of an agent is always said as a whole.
bool Supersedes(const AgentCommand& newer, const AgentCommand& older);
bool Supersedes(const WorkerCommand& newer, const WorkerCommand& older);
bool Supersedes(const ToAgent& newer, const ToAgent& older);
bool Supersedes(const ToWorker& newer, const ToWorker& older);
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
  // The answer to a user's request.
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

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_EFFECTS_H_
