// SPDX-License-Identifier: Apache-2.0
// What a TCP address to listen on means on this machine.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_LISTEN_ADDRESS_H_
#define LOCKSTEP_COORDINATOR_SERVICE_LISTEN_ADDRESS_H_

#include <sys/socket.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace lockstep::coordinator {

struct SocketAddress {
  sockaddr_storage bytes = {};
  socklen_t size = 0;
};

// How long a name may be unknown: a cluster's name service hears of a new host a moment late.
inline constexpr absl::Duration kUnknownFor = absl::Seconds(20);

// The socket addresses for `host` (a number, one of IPv6 in brackets, or a name), in the order in
// which to try them. A name that this machine knows as loopback alone, as its own name often is in
// /etc/hosts, means all its addresses, as [::] does: of IPv6 and IPv4, on a socket that is not
// IPV6_V6ONLY, or of IPv4 where the kernel has no IPv6. "localhost" means loopback. Blocks up to
// kUnknownFor for a name that nobody knows yet. Errors: InvalidArgument (no number, and no name
// that is known).
absl::StatusOr<std::vector<SocketAddress>> ListenAddresses(absl::string_view host, int port,
                                                           Clock* clock);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_LISTEN_ADDRESS_H_
