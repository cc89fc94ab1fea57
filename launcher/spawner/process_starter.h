// SPDX-License-Identifier: Apache-2.0
// Who starts, signals and reaps processes for an agent or a run: the spawner, whose processes end
// with the launcher, or a supervisor, whose processes outlive the agent (launcher/supervisor).
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_SPAWNER_PROCESS_STARTER_H_
#define LOCKSTEP_LAUNCHER_SPAWNER_PROCESS_STARTER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/status.h"

namespace lockstep::launcher {

// ChildStart::failed_call of a process whose folder could not be entered.
inline constexpr char kEnterFolder[] = "chdir";

class ProcessStarter {
 public:
  // For the agents that come after this one; the spawner, which has none, ignores it.
  struct Legacy {
    std::string note;
    std::vector<int> fds = {};
    absl::Duration grace = {};  // between SIGTERM and SIGKILL, when no agent comes back
    // argv[0] is the worker program: a supervisor runs the file that it holds, of the build of the
    // job's other workers here.
    bool worker_program = false;
  };
  struct Request {
    std::vector<std::string> argv = {};     // argv[0]: a path, or a name that is looked up in PATH
    std::vector<std::string> set_env = {};  // "NAME=value"; the rest is the launcher's environment
    std::vector<std::string> unset_env = {};
    std::string cwd = {};  // empty: the launcher's
    // As whom it runs: needs root; -1: as the launcher. `groups` are all its groups.
    int64_t uid = -1;
    uint32_t gid = 0;
    std::vector<uint32_t> groups = {};
    // Descriptors for stdout and stderr; both -1: the launcher's own. stdin is /dev/null.
    int stdout_fd = -1;
    int stderr_fd = -1;
    // Become descriptors 3, 4, ... of the process; at most 12, with those of `legacy`.
    std::vector<int> fds = {};
    Legacy legacy = {};
  };
  struct Exit {
    int code = 0;
    int signal = 0;  // not 0: killed by it
    int64_t peak_rss_bytes = 0;
    absl::Time time;  // of Clock::Real()
  };
  // Why a process was not started.
  struct Failure {
    absl::Status why;
    bool of_folder = false;  // Request::cwd could not be entered
  };
  // What an agent has read of a process's output and another has to go on with.
  struct Output {
    struct Text {
      bool is_stderr = false;
      std::string lines = {};  // each with its "\n"
    };
    std::vector<Text> unlogged = {};  // in their order
    // Of lines of stdout and stderr whose ends have not come yet.
    std::string out = {}, err = {};
  };
  // `call`, by which ChildStart names what failed, did so with this errno.
  static Failure FailureOf(int error_number, std::string_view call) {
    return {ErrnoStatus(error_number, call), call == kEnterFolder};
  }
  // Called on the starter's reader thread, one at a time; must not block. Exactly one of
  // {on_failed} and {on_started, on_exit} is called, in this order. Any may be empty.
  struct Callbacks {
    std::function<void(pid_t pid)> on_started;
    std::function<void(const Failure& failure)> on_failed;
    std::function<void(const Exit& exit)> on_exit;
  };

  virtual ~ProcessStarter() = default;

  // Asks for a process; returns its id before it has started. The descriptors can be closed after
  // the call. Errors: Unavailable when the process that would start it is gone.
  virtual absl::StatusOr<uint64_t> Spawn(const Request& request, Callbacks callbacks) = 0;
  // Sends `signal` to the process group of `id`. No effect once it has exited.
  virtual absl::Status Kill(uint64_t id, int signal) = 0;
  // Hands over what was read of `id`'s output, for the agent after this one. The spawner, which
  // knows none, ignores it.
  virtual void LeaveOutput(uint64_t /*id*/, const Output& /*output*/) {}
  // Nobody wants to know any more how `id` ended, or that it could not be started.
  virtual void Forget(uint64_t id) = 0;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SPAWNER_PROCESS_STARTER_H_
