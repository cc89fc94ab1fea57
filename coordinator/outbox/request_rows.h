// SPDX-License-Identifier: Apache-2.0
// Users' requests as rows of the journal. A request is written down before the core is asked, so
// that one which finds the disk full is refused without having happened, and one which is accepted
// is carried out even when the coordinator ends first. Keys:
//   asked/<number>/submit/<job id>   SubmitJobRequest
//   asked/<number>/cancel            CancelJobRequest
//   asked/<number>/scale             ScaleJobRequest
//   asked/<number>/drain             DrainNodeRequest
//   asked/<number>/undrain           UndrainNodeRequest
//   asked/<number>/hold              HoldJobRequest
//   asked/<number>/token             TokenRecord
//   asked/<number>/revoke            RevokeTokenRequest
// The row goes in the batch that holds what the request led to.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_OUTBOX_REQUEST_ROWS_H_
#define LOCKSTEP_COORDINATOR_OUTBOX_REQUEST_ROWS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/core/core.h"

namespace lockstep::coordinator {

// Returns whether `event` is a user's request, which is answered.
bool IsRequest(const Event& event);
// REQUIRES: IsRequest.
Row RequestRow(int64_t number, const Event& request);

bool IsRequestRow(const std::string& key);
// One that was read from the journal.
struct StoredRequest {
  std::string key;
  int64_t number = 0;
  Event event;
};
// Errors: DataLoss, naming the row.
absl::StatusOr<StoredRequest> ParseRequestRow(const Row& row);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_OUTBOX_REQUEST_ROWS_H_
