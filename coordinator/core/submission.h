// SPDX-License-Identifier: Apache-2.0
// What may be submitted, whoever asks and whatever the cluster has: a request that is not refused
// here is admitted to the queue.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_SUBMISSION_H_
#define LOCKSTEP_COORDINATOR_CORE_SUBMISSION_H_

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// Errors: InvalidArgument, with what is wrong with the words of the client or with its job.
absl::Status CheckSubmission(const SubmitJobRequest& request);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_SUBMISSION_H_
