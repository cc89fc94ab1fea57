// SPDX-License-Identifier: Apache-2.0
#include "worker/peer_protocol.h"

#include <cstdlib>

#include "absl/strings/numbers.h"

namespace lockstep::worker {

int SpokenPeerProtocol() {
  const char* told = std::getenv("LOCKSTEP_PEER_PROTOCOL");
  int version = 0;
  return told != nullptr && absl::SimpleAtoi(told, &version) && version >= 0 ? version
                                                                             : kPeerProtocol;
}

}  // namespace lockstep::worker
