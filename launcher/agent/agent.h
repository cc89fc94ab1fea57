// SPDX-License-Identifier: Apache-2.0
// The node agent: makes this host's workers what the coordinator says they shall be, reads their
// output, and reports starts, deaths and exits. Supervisors have the workers, so that they outlive
// it, and it adopts those of the agent before. machine.h decides; this is what carries it out: one
// loop thread owns all state; the session, the spawner and the life words hand it events, and what
// waits for a run's disk has a thread of its own (run_disk.h).
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_AGENT_H_
#define LOCKSTEP_LAUNCHER_AGENT_AGENT_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "common/life.h"
#include "coordinator/client/client.h"
#include "launcher/agent/data_addresses.h"
#include "launcher/agent/health_check.h"
#include "launcher/agent/run_folder.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

struct AgentOptions {
  coordinator::ClientOptions coordinator;
  Spawner* spawner = nullptr;  // outlives the agent
  // What becomes the supervisor of a job, which has the workers: they outlive this agent, and the
  // next one with the same state folder finds them there. A private agent's workers are the
  // spawner's.
  std::string supervisor_program = "/proc/self/exe";
  std::string worker_program;
  int slots = 1;
  std::map<std::string, std::string> labels;
  bool private_agent = false;
  // Where runs leave their folders instead of the coordinator's choice: one run's folder itself, or
  // the folder that it goes into. Empty: the coordinator's.
  std::string run_dir;
  std::string runs_dir;
  // Where the node's id is kept, and the lock that lets one agent have it; empty: the default of
  // identity.h. A private agent keeps none: its id lasts for the run.
  std::string state_dir;
  // Workers run as the users who submitted their jobs, and what a run leaves is theirs; needs root.
  // `allow_root`: root's jobs, too, as root.
  bool as_users = false;
  bool allow_root = false;
  // At which of this host's addresses other hosts' workers may reach its workers. Of no matter
  // where a private agent's coordinator is on a Unix socket: its workers are all here.
  InterfaceFilter interfaces;
  // How long workers go on that another cluster's coordinator gave and this one does not know, and
  // how long those of an agent that is gone wait for the next one.
  absl::Duration orphan_grace = absl::Minutes(5);
  // How long an agent that leaves keeps workers that hand over to others or save. Not of a private
  // agent.
  absl::Duration leave_grace = absl::ZeroDuration();
  // How soon the host is looked at again when it is not well (health_watch.h). A private agent
  // does not look: its run does.
  absl::Duration health_again = absl::Minutes(1);
  // Words of each job's life page.
  int life_words = LifePage::kWords;
  // How the log of a run is opened; tests have their own. Called on the thread of the run's disk.
  std::function<absl::StatusOr<UniqueFd>(const WorkerAssignment&, bool own)> open_log = OpenRunLog;
  // Returns what is wrong with the disk of a run's folder; tests have their own. Called on the
  // same.
  std::function<std::string(const std::string& folder)> examine_run_disk =
      [](const std::string& folder) { return ExamineDisk(folder, /*own=*/false); };
  // Called at the agent's end, when all else is over, where something does not come back from a
  // disk, with what that is, in words: to end the process at once, since the agent waits for it.
  // Again now and then when it has returned. Null: it waits.
  std::function<void(const std::string& what)> on_hung_disk;
  // How sessions are opened; tests have their own.
  std::function<std::unique_ptr<coordinator::AgentSession>(const coordinator::ClientOptions&,
                                                           coordinator::AgentSession::Callbacks)>
      open_session = coordinator::OpenAgentSession;
  // Something that the user should know and that does not stop the work, said once each. Called on
  // the loop thread.
  std::function<void(const std::string&)> on_warning;
  // The coordinator began or ceased to direct this node; may be empty. Called on the loop thread.
  std::function<void(bool connected, const std::string& reason)> on_connection;
};

// What became of the workers that were told to save and leave.
struct Farewell {
  int workers = 0;        // that have ended since
  int saved = 0;          // of them, with their newest state in a checkpoint
  std::string folder;     // that the job's paths are meant from
  std::string last_line;  // of a worker that saved nothing
};

class Agent {
 public:
  // Errors: ResourceExhausted when a descriptor or a thread cannot be had; FailedPrecondition when
  // another agent lives with this state folder, or it cannot be used.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(AgentOptions options);
  // Kills what still runs, unless it was detached, and leaves.
  virtual ~Agent() = default;

  // Leaves the workers to the next agent with this state folder, and does nothing more. Not of a
  // private agent.
  virtual void Detach() = 0;

  // Ends all workers, whatever the coordinator wants: SIGTERM and SIGKILL after the grace, or
  // SIGKILL at once. No new ones are started. Does not block.
  virtual void Stop(bool kill) = 0;
  // As Stop, when there will be no coordinator again: the workers save what they can and leave,
  // within ten minutes. Does not block.
  virtual void SaveAndStop() = 0;
  // Returns what has come of that so far.
  virtual Farewell farewell() = 0;
  // After Stop: waits until no worker is left. Returns whether that is so.
  virtual bool WaitStopped(absl::Duration timeout) = 0;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_AGENT_H_
