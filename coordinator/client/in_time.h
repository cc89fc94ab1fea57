// SPDX-License-Identifier: Apache-2.0
// A limit of time for gRPC's blocking reads and writes of a stream, which have none: a peer that is
// connected and takes or gives nothing would keep the thread, and on the coordinator the place that
// it has. A limit of the whole call would end what is long and goes on.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_IN_TIME_H_
#define LOCKSTEP_COORDINATOR_CLIENT_IN_TIME_H_

#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace lockstep::coordinator {

// Returns whether `io`, one read or write of a call, has done it: what it returned. After
// `patience` `cancel` is called, by which `io` comes to its end.
bool InTime(std::function<void()> cancel, absl::Duration patience, absl::FunctionRef<bool()> io);

// The same of the call of a ServerContext or ClientContext, which is cancelled.
template <typename Context>
bool InTime(Context* call, absl::Duration patience, absl::FunctionRef<bool()> io) {
  return InTime([call] { call->TryCancel(); }, patience, io);
}

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_IN_TIME_H_
