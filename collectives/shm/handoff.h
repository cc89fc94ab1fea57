// SPDX-License-Identifier: Apache-2.0
// Hands a worker's arena to its peers: a small thread serves the descriptor on an abstract Unix
// socket with a random name to whoever has this user's id and shows the key. Thread-safety:
// ArenaServer is thread-safe; FetchArena is a pure function.
#ifndef LOCKSTEP_COLLECTIVES_SHM_HANDOFF_H_
#define LOCKSTEP_COLLECTIVES_SHM_HANDOFF_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "common/thread.h"

namespace lockstep {

class ArenaServer {
 public:
  // Serves `arena_fd`, which outlives the server. Errors: ResourceExhausted, Internal.
  static absl::StatusOr<std::unique_ptr<ArenaServer>> Start(int arena_fd);
  // Ends the thread; descriptors that were given away stay good.
  ~ArenaServer();

  // The abstract socket's name, without the leading zero byte.
  const std::string& address() const { return address_; }
  // 64 hex digits.
  const std::string& key() const { return key_; }

 private:
  ArenaServer() = default;
  void Serve();
  void Answer(int socket) const;

  int arena_fd_ = -1;
  std::string address_;
  std::string key_;
  UniqueFd listener_;
  UniqueFd stop_;  // an eventfd
  Thread thread_;
};

// Asks the server at `address` for its arena. Blocks for `timeout` at most.
// Errors: Unavailable when nobody listens or answers (yet); FailedPrecondition when it runs as
// another user or refuses the key.
absl::StatusOr<UniqueFd> FetchArena(const std::string& address, const std::string& key,
                                    absl::Duration timeout);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_SHM_HANDOFF_H_
