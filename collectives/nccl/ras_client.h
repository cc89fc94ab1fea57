// SPDX-License-Identifier: Apache-2.0
// Asks NCCL's own watch (RAS: a thread in every process that uses NCCL 2.24 or newer) what it knows
// of the job's communicators: which ranks lag behind, which processes are gone. It speaks plain
// lines over TCP, as the program ncclras does. Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_RAS_CLIENT_H_
#define LOCKSTEP_COLLECTIVES_NCCL_RAS_CLIENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep {

// The status report of the process that listens at `address` ("localhost:28028"). Blocks until
// `deadline` at most. Errors: Unavailable when nobody answers, with the address;
// InvalidArgument for an address that is none.
absl::StatusOr<std::string> QueryRas(const std::string& address, absl::Time deadline);

// Where this process's NCCL listens: NCCL_RAS_ADDR, else NCCL's default.
std::string RasAddress();

// The lines of a report that tell of something wrong, at most `lines` of them; all of a short
// report without any.
std::string RasDigest(const std::string& report, int lines);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_RAS_CLIENT_H_
