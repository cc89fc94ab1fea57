// SPDX-License-Identifier: Apache-2.0
// The other hosts of a run that this launcher begins: on each one a launcher (ordered_guest.h),
// which ssh starts. All are children of the spawner, so that they end with this process, and what
// they started ends when their standard input does. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_REMOTE_HOSTS_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_REMOTE_HOSTS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/spawner/spawner.h"

namespace lockstep::launcher {

// How the part of a run on one host ended.
struct RemoteEnd {
  bool was_ready = false;  // its agent had begun to take part
  int code = 0;
  int signal = 0;         // not 0: of what entered the host
  std::string last_line;  // that it wrote on stderr
};

// Why a host takes no part in the run, and what to do: what ssh, its shell or its launcher at
// `launcher` said before the agent was there. `command`: that enters hosts. FailedPrecondition.
absl::Status WhyNoPart(const std::string& host, const std::string& command,
                       const std::string& launcher, const RemoteEnd& end);

// The words of a command that enters hosts, such as "ssh -p 2222", with the options that a run
// needs when it is ssh: it asks nothing, and notices a host that is gone.
std::vector<std::string> EnterCommand(const std::string& command);
// Returns what a shell reads as the one word `text`.
std::string ShellWord(const std::string& text);

class RemoteHosts {
 public:
  struct Part {
    std::string host;
    std::vector<std::string> argv;  // that starts the launcher there
    std::string input;  // what it gets on its standard input, which stays open; up to 64 KiB
  };
  // Called on threads of this class; not after its destructor has begun.
  struct Callbacks {
    // A line of stderr, of ssh or of the launcher there.
    std::function<void(size_t part, const std::string& line)> on_line;
    // It has ended, whatever the reason. Called once for each part.
    std::function<void(size_t part, const RemoteEnd& end)> on_end;
  };

  // Errors: ResourceExhausted when pipes or threads cannot be had.
  static absl::StatusOr<std::unique_ptr<RemoteHosts>> Start(Spawner* spawner,
                                                            const std::vector<Part>& parts,
                                                            Callbacks callbacks);
  // Kills what is left here of the parts, and waits for the threads.
  ~RemoteHosts();

  // They may leave: ends their input.
  void Release();
  // Blocks until all have ended, for `timeout` at most; returns whether they have.
  bool AwaitEnd(absl::Duration timeout);

 private:
  struct Entered;
  struct Shared;
  RemoteHosts() = default;
  absl::Status Enter(Spawner* spawner, size_t number, const Part& part);

  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Entered>> entered_;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_REMOTE_HOSTS_H_
