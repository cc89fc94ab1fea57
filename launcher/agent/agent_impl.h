// SPDX-License-Identifier: Apache-2.0
// The agent itself, which agent.h offers: it carries out what the pure machine decides (machine.h).
// The sources: agent.cc (the node, the session, the machine's steps), agent_workers.cc (how
// workers start and end, and what they say) and agent_adopts.cc (those of the agent before).
// Thread-safety: as Agent; the rest as noted.
#ifndef LOCKSTEP_LAUNCHER_AGENT_AGENT_IMPL_H_
#define LOCKSTEP_LAUNCHER_AGENT_AGENT_IMPL_H_

#include <signal.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "common/farewell.h"
#include "common/life.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/file_sender.h"
#include "launcher/agent/gpus.h"
#include "launcher/agent/health_watch.h"
#include "launcher/agent/host.h"
#include "launcher/agent/identity.h"
#include "launcher/agent/life_watch.h"
#include "launcher/agent/log_forwarder.h"
#include "launcher/agent/machine.h"
#include "launcher/agent/start_gate.h"
#include "launcher/agent/usage.h"
#include "launcher/agent/workdirs.h"
#include "launcher/agent/worker_process.h"
#include "launcher/supervisor/supervisors.h"
#include "proto/supervisor.pb.h"

namespace lockstep::launcher {

class AgentImpl : public Agent {
 public:
  explicit AgentImpl(AgentOptions options)
      : options_(std::move(options)), incarnation_(RandomId()) {}
  ~AgentImpl() override;
  // Identifies the node, and begins to speak to the coordinator. Errors: those of the state folder.
  absl::Status Init();

  void Detach() override;
  void Stop(bool kill) override;
  bool WaitStopped(absl::Duration timeout) override;
  void SaveAndStop() override;
  Farewell farewell() override;

 private:
  // On the session's thread.
  AgentMessage Hello();

  // On the loop's thread.
  absl::Status Identify();
  void WatchHealth();
  AgentMachineOptions MachineOptions() const;
  void SetUpNode();
  // The workers of the agents before. Errors: those of the folder of the supervisors.
  absl::Status AdoptWorkers();
  void Adopt(const std::shared_ptr<SupervisorClient>& supervisor, SupervisorClient::Kept kept,
             const WorkerNote& note, std::shared_ptr<LifePage> page);
  void OpenSession();
  absl::Time AfterEvents();
  // Steps the machine and carries out what it says; events that arise from that come after it.
  void Feed(AgentEvent event);
  void Do(const agent_action::Start& action);
  void Do(const agent_action::Terminate& action) { Signal(action.incarnation, SIGTERM); }
  void Do(const agent_action::SaveAndLeave& action) { Signal(action.incarnation, kFarewellSignal); }
  void Do(const agent_action::Kill& action) { Signal(action.incarnation, SIGKILL); }
  void Do(const agent_action::Forget& action);
  void Do(const agent_action::Send& action) { Send(action.message); }
  void Do(const agent_action::SendFiles& action) { files_->Send(action.wanted); }
  void Do(const agent_action::Heartbeat& action);
  void Do(const agent_action::CloseSession& action);
  void Do(const agent_action::OpenSession&) { OpenSession(); }
  void Do(const agent_action::Report& action);
  void Do(const agent_action::Warn& action) { Warn(action.text); }

  void FindDataAddresses(const std::string& seen);
  // Returns whether the worker waits for a look at the host, as a job's first one does.
  bool AwaitsLook(const WorkerProcess& worker);
  // Goes on with that: the host is well, and the job's disk is looked at.
  void LookAtRun(const std::string& job_id, const std::string& folder);
  void OnLooked(const std::string& job_id, const std::string& problem, bool of_node);
  // Goes on with a worker: what it starts in is there, or cannot be had.
  void OnWorkdir(const std::string& incarnation, const absl::Status& made);
  void StartWhenWell(WorkerProcess* worker);
  void StartNow(WorkerProcess* worker, const absl::Status& checked);
  absl::Status CheckStart(const WorkerProcess& worker);
  // Goes on with a worker: its log is there, or cannot be had.
  void OnLogOpened(const std::string& incarnation, const WorkerProcess::Log& log);
  absl::Status StartWorker(WorkerProcess* worker, const WorkerProcess::Log& log);
  std::shared_ptr<RunDisk> DiskOf(const std::string& job_id);
  // Waits for those that answer. Returns the jobs for which not everything is done.
  std::vector<std::string> SettleDisks();
  // Begins nothing more on disks and waits for what is under way there: where it moves, and for
  // that of which nobody knows, `patience` at most. Returns what does not come back, in words;
  // empty: everything is done.
  std::string AwaitDisks(absl::Duration patience);
  // Says which disks do not answer, and which do again.
  void LookAtDisks();
  // Says to who follows the job, or all jobs (""), why its workers that were not started yet wait.
  void TellOfWait(const std::string& job_id, const std::string& why);
  absl::StatusOr<std::shared_ptr<LifePage>> PageOf(const std::string& job_id);
  // Watches its life and its output.
  void WatchWorker(WorkerProcess* worker);
  void WatchOutput(WorkerProcess* worker);
  // Reads its output again when there is room for it.
  void HoldOutput(WorkerProcess* worker);
  void Signal(const std::string& incarnation, int signal);
  void OnStarted(WorkerProcess* worker, pid_t pid);
  void OnDied(uint64_t id, absl::Time seen);
  void OnExit(WorkerProcess* worker, const ProcessStarter::Exit& exit);
  void OnStartFailed(WorkerProcess* worker, const absl::Status& why, bool node_unfit = false);
  void OnLines(WorkerProcess* worker, bool is_stderr, const std::vector<std::string>& lines);
  // Closes what the worker has open. Returns its place among the deaths of its job here.
  int64_t Conclude(WorkerProcess* worker);
  // Calls `tell`, of the end of a worker that was concluded, when its log is written, or is not
  // within `patience`.
  void TellOnceLogged(WorkerProcess* worker, absl::Duration patience, std::function<void()> tell);
  // Calls those that are late. Returns when the next one will be.
  absl::Time TellLateEnds(absl::Time now);
  void Send(const AgentMessage& message);
  // Said at most once.
  void WarnOnce(const std::string& message);
  void Warn(const std::string& message);
  void Publish();
  // How a worker left that was told to save.
  void NoteFarewell(const WorkerProcess& worker, const ProcessStarter::Exit& exit);

  AgentOptions options_;  // fixed after Init
  const std::string incarnation_;
  const std::string host_ = HostName();
  const std::vector<Gpu> gpus_ = UsableGpus();
  int64_t file_limit_ = 0;
  NodeIdentity identity_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<LifeWatch> life_watch_;  // posts to the loop, so it goes first
  std::unique_ptr<FileSender> files_;
  WorkerProcess::Node node_;
  std::map<std::string, std::shared_ptr<RunDisk>> disks_;  // by job; they post to the loop
  std::set<std::string> standing_disks_;      // jobs whose disks were said not to answer
  std::unique_ptr<Supervisors> supervisors_;  // null: a private agent
  bool detached_ = false;
  std::unique_ptr<UsageSampler> usage_;
  std::string state_folder_;

  // The loop's.
  std::unique_ptr<AgentMachine> machine_;
  std::deque<AgentEvent> events_;
  bool feeding_ = false;
  bool saving_ = false;  // SaveAndStop was called
  absl::Time next_ = absl::InfinitePast();
  std::unique_ptr<coordinator::AgentSession> session_;  // null: closed
  int session_number_ = 0;                              // 0: there was none yet
  std::vector<AgentMessage> early_;                     // for the first one, of workers taken over
  std::map<std::string, std::unique_ptr<WorkerProcess>> workers_;  // by incarnation
  std::map<std::string, std::weak_ptr<LifePage>> pages_;           // by job
  struct End {
    absl::Time deadline;
    std::function<void()> tell;
  };
  std::map<uint64_t, End> ends_;  // that nobody was told of yet, by the worker's id
  uint64_t next_worker_id_ = 1;
  LogForwarder forwarder_{host_};
  std::set<std::string> warned_;
  StartGate gate_;
  std::set<std::string> preparing_;  // incarnations that wait for their workdir
  std::set<std::string> opening_;    // and for their log
  std::string problem_;              // of the host, as it was said last

  absl::Mutex mu_;
  CondVar changed_;
  AgentHello known_ ABSL_GUARDED_BY(mu_);  // the machine's part of the hello
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  Farewell farewell_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HealthWatch> health_;  // null: nobody looks; posts to the loop
  std::unique_ptr<Workdirs> workdirs_;   // posts to the loop
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_AGENT_IMPL_H_
