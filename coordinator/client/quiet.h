// SPDX-License-Identifier: Apache-2.0
// Keeps gRPC's own log lines off the user's terminal: what matters comes back as a status.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_QUIET_H_
#define LOCKSTEP_COORDINATOR_CLIENT_QUIET_H_

namespace lockstep::coordinator {

// Drops gRPC's log lines in this process unless the environment variable GRPC_VERBOSITY asks for
// them.
void QuietGrpc();

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_QUIET_H_
