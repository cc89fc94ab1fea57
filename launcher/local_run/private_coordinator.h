// SPDX-License-Identifier: Apache-2.0
// The coordinator of a run on this machine: a child of the spawner on a Unix socket in a folder
// that only this user can enter. It dies with the launcher, and the folder goes with it.
// Thread-safety: thread-compatible; `on_exit` is called on the spawner's reader thread.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_PRIVATE_COORDINATOR_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_PRIVATE_COORDINATOR_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

class PrivateCoordinator {
 public:
  // Asks for the process and returns while it starts. `on_exit` is told how it ended, if it does.
  // The program: LOCKSTEP_COORDINATOR_BIN, else `coordinator` beside the launcher.
  // Errors: NotFound without the program; whatever making the folder meets.
  static absl::StatusOr<std::unique_ptr<PrivateCoordinator>> Start(
      Spawner* spawner, std::function<void(const std::string& how)> on_exit);

  // Blocks until it serves. Errors: Unavailable when it ended, DeadlineExceeded, Cancelled when
  // `interrupt_fd` became readable.
  absl::Status WaitReady(absl::Duration timeout, int interrupt_fd);

  const std::string& address() const { return address_; }

 private:
  PrivateCoordinator() = default;
  std::string address_;
  UniqueFd ready_;
};

// "was killed by SIGKILL", "exited with code 3".
std::string HowItEnded(const Spawner::Exit& exit);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_PRIVATE_COORDINATOR_H_
