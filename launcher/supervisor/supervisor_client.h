// SPDX-License-Identifier: Apache-2.0
// The agent's end of one job's supervisor. When the supervisor is killed the kernel kills its
// processes with it: each is reported as killed by SIGKILL, once it is gone.
// Thread-safety: thread-safe, but for what is called before Run.
#ifndef LOCKSTEP_LAUNCHER_SUPERVISOR_SUPERVISOR_CLIENT_H_
#define LOCKSTEP_LAUNCHER_SUPERVISOR_SUPERVISOR_CLIENT_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "common/thread.h"
#include "launcher/spawner/process_starter.h"
#include "proto/supervisor.pb.h"

namespace lockstep::launcher {

class SupervisorClient : public ProcessStarter {
 public:
  // A process that was there when the agent came.
  struct Kept {
    KeptProcess process;
    std::vector<UniqueFd> fds;  // stdout, stderr, log, then the others of its Legacy
  };

  // Takes the connected socket over and greets. `child`: the supervisor's process, where it is a
  // child of this one, else -1. Errors: Unavailable.
  static absl::StatusOr<std::unique_ptr<SupervisorClient>> Greet(UniqueFd socket, pid_t child);
  // Leaves the supervisor and its processes alone; no callback comes any more.
  ~SupervisorClient() override;

  // Reads what the supervisor has, before Run. Errors: DeadlineExceeded when it does not answer;
  // FailedPrecondition when it speaks another version.
  absl::StatusOr<std::vector<Kept>> Await(absl::Duration timeout);
  // Has the callbacks called for a process of Await; before Run. Its end, if it is known, comes as
  // one.
  void Adopt(const KeptProcess& process, Callbacks callbacks);
  // Begins to call back.
  void Run();

  absl::StatusOr<uint64_t> Spawn(const Request& request, Callbacks callbacks) override;
  absl::Status Kill(uint64_t id, int signal) override;
  void LeaveOutput(uint64_t id, const Output& output) override;
  void Forget(uint64_t id) override;

  // It can start processes: it lives, and does not end. As of now, whatever was reported before.
  bool usable() const;
  // It is gone, and all its processes' ends have been told.
  bool over() const;
  // Of Await.
  const std::string& job_id() const { return job_id_; }
  pid_t pid() const { return pid_; }

 private:
  struct Entry {
    std::shared_ptr<Callbacks> callbacks;
    pid_t pid = 0;
    UniqueFd pidfd;  // to see its end when the supervisor cannot tell
    bool ended = false;
  };
  SupervisorClient(UniqueFd socket, pid_t child) : socket_(std::move(socket)), child_(child) {}
  absl::Status Send(const SupervisorCommand& command, const std::vector<int>& fds);
  void ReadReports();
  void Handle(const SupervisorReport& report);
  void OnEnded(const ProcessEnded& ended);
  // The supervisor is gone, and so are its processes, or soon: one that is not is killed.
  void OnLost();

  const UniqueFd socket_;
  const pid_t child_;
  std::string job_id_;
  pid_t pid_ = 0;
  std::vector<ProcessEnded> ended_before_;  // of Adopt, until Run
  absl::Mutex send_mu_;
  mutable absl::Mutex mu_;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool usable_ ABSL_GUARDED_BY(mu_) = true;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);  // that were not forgotten
  Thread reader_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SUPERVISOR_SUPERVISOR_CLIENT_H_
