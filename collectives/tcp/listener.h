// SPDX-License-Identifier: Apache-2.0
// The TCP sockets on which a worker is reached by ranks of other nodes, for its whole life. The
// kernel chooses the port. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COLLECTIVES_TCP_LISTENER_H_
#define LOCKSTEP_COLLECTIVES_TCP_LISTENER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/fd.h"

namespace lockstep {

class Listener {
 public:
  // Listens on one port of the local `addresses` (numeric, without a port); none: of all, of both
  // families where the host has both. Errors: InvalidArgument for an address that is none,
  // Unavailable for one that this host does not have.
  static absl::StatusOr<Listener> Open(absl::Span<const std::string> addresses);

  int port() const { return port_; }
  const std::vector<UniqueFd>& sockets() const { return sockets_; }

 private:
  int port_ = 0;
  std::vector<UniqueFd> sockets_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_LISTENER_H_
