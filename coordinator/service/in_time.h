// SPDX-License-Identifier: Apache-2.0
// A limit of time for gRPC's blocking reads and writes of a stream, which have none: a peer that is
// connected and takes or gives nothing would keep the thread, and the place that it has.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_IN_TIME_H_
#define LOCKSTEP_COORDINATOR_SERVICE_IN_TIME_H_

#include <grpcpp/server_context.h>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace lockstep::coordinator {

// Returns whether `io`, one read or write of the call, has done it: what it returned. After
// `patience` the call is cancelled, by which `io` comes to its end.
bool InTime(grpc::ServerContext* call, absl::Duration patience, absl::FunctionRef<bool()> io);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_IN_TIME_H_
