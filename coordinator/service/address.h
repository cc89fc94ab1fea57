// SPDX-License-Identifier: Apache-2.0
// Which addresses a coordinator may listen on.
// Thread-safety: pure functions, but for CheckFree, which tries to connect.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_ADDRESS_H_
#define LOCKSTEP_COORDINATOR_SERVICE_ADDRESS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep::coordinator {

// Errors: InvalidArgument (not an address), FailedPrecondition (other machines can reach it).
absl::Status CheckListenAddress(absl::string_view address);

// gRPC takes the socket file of a live server away from it, so that is asked before.
// Errors: FailedPrecondition when somebody listens on the Unix socket `address`.
absl::Status CheckFree(absl::string_view address);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_ADDRESS_H_
