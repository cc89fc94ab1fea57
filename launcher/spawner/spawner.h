// SPDX-License-Identifier: Apache-2.0
// The launcher's end of its spawner: a single-threaded process that is forked at the very start of
// the program, before gRPC and before any thread, and that is the parent of everything which the
// launcher starts. When the launcher dies, however that happens, the spawner kills all of them with
// all their descendants; when the spawner dies, the kernel kills its children.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_SPAWNER_SPAWNER_H_
#define LOCKSTEP_LAUNCHER_SPAWNER_SPAWNER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "common/thread.h"
#include "launcher/spawner/process_starter.h"
#include "launcher/spawner/wire.h"

namespace lockstep::launcher {

class Spawner : public ProcessStarter {
 public:
  // Forks the spawner. Called once, first thing in main: the process must have one thread.
  // Errors: as of socketpair(2) and fork(2).
  static absl::StatusOr<std::unique_ptr<Spawner>> Fork();

  // Ends the spawner and with it, at once, every process that it started; waits for it.
  ~Spawner() override;

  absl::StatusOr<uint64_t> Spawn(const Request& request, Callbacks callbacks) override;
  absl::Status Kill(uint64_t id, int signal) override;
  void Forget(uint64_t) override {}
  // Remembers a file (or empty folder) to remove when the launcher has ended, even by SIGKILL.
  // Files are removed before folders.
  absl::Status RemoveFileAtEnd(const std::string& path);
  absl::Status RemoveDirAtEnd(const std::string& path);

  // `on_lost` is called on the reader thread when the spawner has died before its time. Its
  // children are dead or dying then.
  void SetOnLost(std::function<void()> on_lost);

  // The spawner has died before its time.
  bool lost() const;

  pid_t pid() const { return pid_; }

 private:
  Spawner(UniqueFd socket, pid_t pid) : socket_(std::move(socket)), pid_(pid) {}
  absl::Status Send(const SpawnerCommand& command, const std::vector<int>& fds);
  void ReadEvents();
  void HandleEvent(const SpawnerEvent& event);

  const UniqueFd socket_;
  const pid_t pid_;
  absl::Mutex send_mu_;
  mutable absl::Mutex mu_;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> on_lost_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, std::shared_ptr<Callbacks>> callbacks_ ABSL_GUARDED_BY(mu_);
  Thread reader_ ABSL_GUARDED_BY(mu_);  // started with the first process
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SPAWNER_SPAWNER_H_
