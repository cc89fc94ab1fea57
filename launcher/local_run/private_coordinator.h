// SPDX-License-Identifier: Apache-2.0
// The coordinator of a run on this machine: a child of the spawner on a Unix socket in a folder
// that only this user can enter, with its journal; or on a TCP port, for a run over several hosts.
// When it dies it is started again there and goes on from its journal; one that stands still is
// killed for that. It dies with the launcher, and the folder goes with it. Thread-safety:
// thread-safe; the callbacks are called on the spawner's reader thread.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_PRIVATE_COORDINATOR_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_PRIVATE_COORDINATOR_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "common/thread.h"
#include "coordinator/client/client.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

class PrivateCoordinator {
 public:
  // How often it is started again within a minute before it is given up.
  static constexpr int kRestarts = 10;
  // It stands still when it answers none of so many questions in a row within this time each. One
  // alone may have been asked before this whole machine stood still.
  static constexpr int kQuestions = 3;
  static constexpr absl::Duration kAnswerTime = absl::Seconds(4);

  struct Callbacks {
    // It ended and is being started again.
    std::function<void(const std::string& how)> on_restart;
    // It ended for good.
    std::function<void(const std::string& how)> on_lost;
  };
  // How other hosts reach it.
  struct Network {
    std::string endpoint;  // host:port, an address of this host; port 0: any
    RunTokens tokens;
    bool plaintext = false;
    bool guests_come = false;  // by themselves: the same command is started on other hosts
  };
  // Asks for the process and returns while it starts. Without `network` it is this user's alone.
  // The program: LOCKSTEP_COORDINATOR_BIN, else `coordinator` beside the launcher.
  // Errors: NotFound without the program; whatever making the folder meets.
  static absl::StatusOr<std::unique_ptr<PrivateCoordinator>> Start(
      Spawner* spawner, Callbacks callbacks, const std::optional<Network>& network = std::nullopt);
  // Its end is nobody's concern any more. Waits for a callback under way, and so is not to be
  // called in one, nor with a lock held that one takes.
  ~PrivateCoordinator();

  // Blocks until it serves for the first time. An end before that is for good; it is for on_lost to
  // say so first, and to make `interrupt_fd` readable. Errors: Cancelled when `interrupt_fd` became
  // readable, Aborted when it ended and nothing was said for 10 s, DeadlineExceeded.
  absl::Status WaitReady(absl::Duration timeout, int interrupt_fd);
  // It is to keep this package (coordinator/client/packages.h), which goes with its folder.
  absl::Status HasPackage(const std::string& id);
  // Sets whether it is started again when it ends; so unless told otherwise.
  void SetRestarts(bool restarts);

  // From now on it is asked something again and again, on a thread of its own, with `client`, whose
  // calls are stopped at the end. While it is to be started again when it ends, one that stands
  // still is killed; its end is then told as any other. After WaitReady, at most once.
  void Watch(std::unique_ptr<coordinator::Client> client);

  // Where it serves; with a port of 0, the one that it got, after WaitReady.
  const std::string& address() const;
  // The file that the running coordinator holds a lock on.
  const std::string& journal() const;
  // Where the run may make a pipe of its own; it is removed with the folder.
  std::string pipe() const;

 private:
  struct Life;
  PrivateCoordinator() = default;
  void AskOnAndOn();

  std::shared_ptr<Life> life_;
  UniqueFd ready_;
  std::unique_ptr<coordinator::Client> asks_;  // null: nobody watches
  Thread watch_;
};

// "was killed by SIGKILL", "exited with code 3".
std::string HowItEnded(const Spawner::Exit& exit);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_PRIVATE_COORDINATOR_H_
