// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of a connection, out of gRPC's name for it.
// Thread-safety: pure function.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_PEER_HOST_H_
#define LOCKSTEP_COORDINATOR_SERVICE_PEER_HOST_H_

#include <string>

namespace lockstep::coordinator {

struct PeerPlace {
  std::string host;  // numeric, without a zone; empty: none, as of a Unix socket
  int port = 0;
};

// The place in "ipv4:10.0.0.1:4711" or "ipv6:%5Bfd00::1%5D:4711" (gRPC escapes brackets); an IPv4
// address that came in the form of IPv6 as the former.
PeerPlace ParsePeer(const std::string& peer);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_PEER_HOST_H_
