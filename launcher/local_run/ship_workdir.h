// SPDX-License-Identifier: Apache-2.0
// Sends a job's workdir along with it, when the job runs on other hosts.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_SHIP_WORKDIR_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_SHIP_WORKDIR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/client/packages.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// A relative workdir is packed, handed to the coordinator, and named by its package in the request;
// an absolute one is the nodes' own. Blocks. Returns the package's name; empty: none was needed.
// Errors: FailedPrecondition, InvalidArgument and ResourceExhausted as PackFolder, with what to do;
// those of PackagesClient::Put.
absl::StatusOr<std::string> ShipWorkdir(coordinator::PackagesClient* client,
                                        SubmitJobRequest* request);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_SHIP_WORKDIR_H_
