// SPDX-License-Identifier: Apache-2.0
// The process of a command, and all that comes of it: this process is the reaper of everything that
// descends from the command, also of what left its group or session, and ends it with the command.
// Thread-safety: lives on the process's main thread, as the kernel ends the command with the thread
// that started it.
#ifndef LOCKSTEP_WORKER_COMMAND_RANK_PROCESS_H_
#define LOCKSTEP_WORKER_COMMAND_RANK_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::worker {

// How a process ended.
struct ProcessEnd {
  int code = 0;
  int signal = 0;  // not 0: it was killed by it
};

class RankProcess {
 public:
  // Adopts what loses its parent below this process, and asks the kernel for SIGTERM at the end of
  // its own parent. Once, before Start.
  static void BecomeReaper();

  // Starts `argv` in a group of its own, with this process's output, folder and environment changed
  // by `set_env` ("NAME=value") and without `unset_env`. Errors: NotFound, PermissionDenied and
  // others of execve(2), with the name.
  absl::Status Start(const std::vector<std::string>& argv, const std::vector<std::string>& set_env,
                     const std::vector<std::string>& unset_env);
  // Returns whether Reap has yet to say how the command ended.
  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  // Sends SIGTERM to the command's group. All of the group may take its time from now on: a shell
  // ends at once, while what it runs still saves.
  void Terminate();
  // Ends the time that Terminate gave: kills the group; Reap kills the rest.
  void Kill();
  // Reaps what has ended. Once the command has, or after Terminate its whole group, everything else
  // that came of it is killed, and how the command itself ended is returned, once.
  std::optional<ProcessEnd> Reap();
  // Returns how many bytes of memory the command, or one that it left behind, had at its peak: of
  // those that Reap has reaped since Start, and what these have waited for.
  int64_t peak_rss_bytes() const { return peak_rss_bytes_; }
  // Kills the command and everything that came of it.
  void KillAll();

 private:
  // Returns whether the group, told to end, has members that may still be saving.
  bool GroupSaves() const;

  pid_t pid_ = 0;                  // the command, and its group
  bool terminated_ = false;        // its group has time to end
  std::optional<ProcessEnd> end_;  // the command's, until Reap returns it
  int64_t peak_rss_bytes_ = 0;
};

// Ends this process as `end` says: with the same code, or by the same signal. No other exit is
// taken: destructors and threads are left where they are.
[[noreturn]] void EndLike(const ProcessEnd& end);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMAND_RANK_PROCESS_H_
