// SPDX-License-Identifier: Apache-2.0
// What a coordinator begins with.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_BEGINNING_H_
#define LOCKSTEP_COORDINATOR_SERVICE_BEGINNING_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/core.h"
#include "coordinator/outbox/outbox.h"
#include "coordinator/outbox/request_rows.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {

struct Beginning {
  Speaker speaker;
  State state;
  std::vector<StoredRequest> requests;  // written down and not carried out, in order
};

// Reads all of `store` and counts this coordinator in it; of two that start at the same time only
// one gets a number. A journal without gets a cluster_id and a
// secret. Blocks for the store. Errors: DataLoss, or as
// the store.
absl::StatusOr<Beginning> Begin(Store* store, const Options& limits, absl::Time now);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_BEGINNING_H_
