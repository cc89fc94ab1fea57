// SPDX-License-Identifier: Apache-2.0
// `launcher guest`: takes part in a run as a launcher on another host orders, which has started
// this one by ssh and hands it a GuestOrder (proto/guest.proto). It says "ready" on its standard
// output when its agent is there; the end of its standard input means that the other one is gone,
// or done. Thread-safety: thread-safe, but for RunOrderedGuest.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_ORDERED_GUEST_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_ORDERED_GUEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/cli/arguments.h"
#include "launcher/spawner/spawner.h"
#include "proto/guest.pb.h"

namespace lockstep::launcher {

// What a guest says when its agent is there.
inline constexpr char kGuestReady[] = "ready";

// The order as it goes through the pipe.
std::string EncodeOrder(const GuestOrder& order);
// Reads one. Blocks for `timeout` at most. Errors: InvalidArgument (it is none), Unavailable (the
// stream ended before it was whole), DeadlineExceeded.
absl::StatusOr<GuestOrder> ReadOrder(int fd, absl::Duration timeout);

// Blocks to the end; returns the exit code, as RunAsGuest does; kExitNotAdmitted when the order is
// of another version, or its folder is not on this host.
int RunOrderedGuest(const GuestArgs& args, Spawner* spawner);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_ORDERED_GUEST_H_
