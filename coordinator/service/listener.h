// SPDX-License-Identifier: Apache-2.0
// A listening socket of the coordinator's own, so that it decides who may speak before a byte is
// read (door.h).
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_LISTENER_H_
#define LOCKSTEP_COORDINATOR_SERVICE_LISTENER_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fd.h"
#include "common/thread.h"
#include "coordinator/service/anteroom.h"
#include "coordinator/service/door.h"

namespace lockstep::coordinator {

// Checks how an address is written; whether this machine has it is found by Listener::Bind. Errors:
// InvalidArgument.
absl::Status CheckListenForm(absl::string_view address);

// Errors: InvalidArgument (not an address), FailedPrecondition (other machines can reach it, and
// `reachable` does not allow that: there are no certificates, and no --plaintext).
absl::Status CheckListenAddress(absl::string_view address, bool reachable = false);

class Listener {
 public:
  // Binds and listens; connections wait until Start. A socket file has mode 0600, with
  // `local_users` 0666, whatever the umask; one that nobody listens on any more is replaced.
  // Errors: InvalidArgument and FailedPrecondition as CheckListenAddress; FailedPrecondition also
  // when the address is in use or not allowed.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& address,
                                                        bool reachable = false,
                                                        bool local_users = false);
  ~Listener();  // stops; removes its socket file

  // Calls `on_connection` with each connection that `door` lets in, on a thread of its own; with
  // one over TCP when it is its turn (turnstile.h). `door` outlives that thread. May be called
  // again after Stop; connections wait meanwhile.
  void Start(std::function<void(UniqueFd)> on_connection, Door* door);
  // No connection comes any more. Blocks for the thread.
  void Stop();

  // Returns what clients use, with the port that was bound.
  const std::string& address() const { return address_; }

 private:
  Listener() = default;
  absl::Status BindUnix(absl::string_view path);
  absl::Status BindAbstract(absl::string_view name);
  absl::Status BindTcp(absl::string_view host, int port);
  void Run();
  void Accept();

  std::string address_;
  UniqueFd socket_;
  UniqueFd stop_;
  bool unix_ = false;
  std::string path_;    // of the socket file; empty: there is none
  mode_t mode_ = 0600;  // of it
  ino_t inode_ = 0;     // of it
  std::unique_ptr<Anteroom> anteroom_;
  std::function<void(UniqueFd)> on_connection_;
  Door* door_ = nullptr;
  Thread thread_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_LISTENER_H_
