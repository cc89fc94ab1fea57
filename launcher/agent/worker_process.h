// SPDX-License-Identifier: Apache-2.0
// One worker process as its agent sees it: the start, the output, the death, the exit record.
//
// What a worker process is given:
//   command        <worker program> --bootstrap-fd=3 --life-fd=4
//   descriptors    0 /dev/null, 1 and 2 pipes to the agent, 3 a memfd with the serialised
//                  WorkerBootstrap (read from offset 0), 4 the life page of the job's workers
//                  here (LifePage::Open), of which the main thread takes
//                  WorkerBootstrap.life_slot
//   folder         the job's workdir, or the folder it was submitted from
//   environment    the agent's, with the job's env and secrets
//   signals        SIGTERM: leave within the grace; SIGKILL follows, and also when its supervisor
//                  dies, or in a run on this machine the launcher
//
// Thread-safety: lives on the agent's loop thread; what other threads see is handed over by `post`.
#ifndef LOCKSTEP_LAUNCHER_AGENT_WORKER_PROCESS_H_
#define LOCKSTEP_LAUNCHER_AGENT_WORKER_PROCESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fd.h"
#include "common/life.h"
#include "launcher/agent/account.h"
#include "launcher/agent/epoch.h"
#include "launcher/agent/log_queue.h"
#include "launcher/agent/output.h"
#include "launcher/agent/run_disk.h"
#include "launcher/spawner/process_starter.h"
#include "launcher/supervisor/supervisor_client.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

class WorkerProcess {
 public:
  // What all workers of an agent share. Must outlive them.
  struct Node {
    // Who starts a job's processes.
    std::function<absl::StatusOr<std::shared_ptr<ProcessStarter>>(const std::string& job_id)>
        starter;
    std::string program;
    std::string coordinator_address;
    std::string token;  // the agent's own; workers get one of theirs
    std::string node_id;
    std::string host;
    // For other hosts' workers, best first; of the workers that are started from now on.
    std::vector<std::string> data_addresses;
    bool own_run_folder = false;  // the agent's user chose where runs lie
    bool is_private = false;      // the agent serves one run, which is its user's own
    // Whose job it is is whose process it is; root's too.
    bool as_users = false;
    bool allow_root = false;
    // Runs a function on the loop thread; callable from any thread.
    std::function<void(std::function<void()>)> post;
    // On the loop thread:
    std::function<void(WorkerProcess*, pid_t)> on_started;
    std::function<void(WorkerProcess*, const ProcessStarter::Exit&)> on_exit;
    std::function<void(WorkerProcess*, const absl::Status&)> on_start_failed;
    std::function<void(WorkerProcess*, bool is_stderr, const std::vector<std::string>&)> on_lines;
    std::function<void(const absl::Status&)> on_warning;
    // Which disk a job's runs are on, as far as waiting for it goes.
    std::function<std::shared_ptr<RunDisk>(const std::string& job_id)> disk;
    // OpenRunLog; tests have their own. Called on that disk's thread.
    std::function<absl::StatusOr<UniqueFd>(const WorkerAssignment&, bool own)> open_log;
  };

  // The coordinator that wanted it: the worker obeys its cluster alone, and the next agent finds it
  // with the process.
  struct Origin {
    std::string cluster_id;
    Epoch epoch;
  };

  // `id` names this life among all that the agent starts.
  WorkerProcess(Node* node, WorkerAssignment assignment, uint64_t id, Origin origin)
      : node_(node), assignment_(std::move(assignment)), id_(id), origin_(std::move(origin)) {}

  ~WorkerProcess() { CloseLog(); }

  using Log = absl::StatusOr<std::shared_ptr<LogFile>>;
  // Makes the run's folder and opens the log there, on its job's RunDisk; `done` is called there,
  // or here where that is not tried.
  void OpenLog(std::function<void(const Log&)> done);
  // Opens pipes and asks the spawner for a process with `page`, of which it takes a slot. After
  // OpenLog, with what that opened. Errors: whatever hinders the start; what hinders it later comes
  // as on_start_failed.
  absl::Status Start(std::shared_ptr<LifePage> page, std::shared_ptr<LogFile> log);
  // Takes over a process that a former agent has started, with what of its output nobody has read.
  // Its supervisor calls back as for one that Start asked for. Returns what is to be called.
  ProcessStarter::Callbacks Adopt(std::shared_ptr<SupervisorClient> supervisor,
                                  SupervisorClient::Kept kept, std::shared_ptr<LifePage> page,
                                  int life_slot);
  // Signals the process and its group.
  void Signal(int signal);
  // Nobody wants to know any more how it ended.
  void Forget();
  // The next agent gets what of a line was read; called when nothing more is.
  void LeavePartial();
  // Begins to write nothing more into its log.
  void StopLogging();
  // The next agent gets what was read and is not in the log; called when nothing more is read,
  // after StopLogging.
  void LeaveUnlogged();
  // The process has ended, or was never started: its life is over, and the page's word is free for
  // others. Returns its place among the deaths of the page; 0: it had no life there.
  int64_t EndLife();

  // Reads what stream 0 (stdout) or 1 (stderr) has, at most 256 KiB. Returns whether there may be
  // more. At its end the descriptor stays open, so that who waits for it can forget it: the
  // supervisor has the same one, and epoll(7) goes on telling of a closed one that others have.
  bool ReadOutput(int stream);
  // After the exit: reads what is left and closes both streams.
  void FinishOutput();
  const WorkerAssignment& assignment() const { return assignment_; }
  const std::string& incarnation() const { return assignment_.incarnation(); }
  uint64_t id() const { return id_; }
  // Null before Start and after EndLife.
  const std::shared_ptr<LifePage>& page() const { return page_; }
  int life_slot() const { return life_slot_; }
  int output_fd(int stream) const { return streams_[stream].fd.get(); }
  // The stream's end was read.
  bool has_ended(int stream) const { return streams_[stream].ended; }
  // Returns what takes its log; null before OpenLog and Adopt.
  RunDisk* disk() const { return disk_.get(); }
  // The newest lines, for the message about its death.
  std::vector<std::string> LastOutput() const { return last_lines_.Get(); }
  // It was dead when the first signal was sent.
  bool died_before_signal() const { return died_before_signal_; }

  // The agent's notes.
  pid_t pid = 0;
  bool ended = false;  // its exit, or why it did not start, is known

 private:
  struct Stream {
    UniqueFd fd;
    LineSplitter splitter;
    RedrawnStates states;
    bool ended = false;
  };
  void Write(bool is_stderr, const std::vector<std::string>& lines);
  void WriteText(bool is_stderr, std::span<const std::string> lines);
  void CloseLog();
  void HandleLines(int stream, const std::vector<std::string>& lines);
  WorkerBootstrap Bootstrap() const;
  std::string LogPath() const;
  std::string Note() const;
  ProcessStarter::Callbacks Callbacks();
  // Asks who starts the job's processes now. Errors: Unavailable when that one is gone.
  absl::Status Ask(const ProcessStarter::Request& request);

  Node* const node_;
  const WorkerAssignment assignment_;
  const uint64_t id_;
  const Origin origin_;
  std::shared_ptr<LifePage> page_;
  int life_slot_ = -1;
  std::shared_ptr<ProcessStarter> starter_;
  uint64_t spawn_id_ = 0;
  bool signalled_ = false;
  bool died_before_signal_ = false;
  Stream streams_[2];
  std::optional<Account> account_;
  std::shared_ptr<RunDisk> disk_;
  std::shared_ptr<LogFile> log_;  // used on the disk's thread
  const std::shared_ptr<LogQueue> unlogged_ = std::make_shared<LogQueue>();
  LastLines last_lines_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_WORKER_PROCESS_H_
