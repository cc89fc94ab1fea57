// SPDX-License-Identifier: Apache-2.0
// What a coordinator begins with.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_BEGINNING_H_
#define LOCKSTEP_COORDINATOR_SERVICE_BEGINNING_H_

#include <cstdint>
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
// one gets a number. A journal without gets a cluster_id and a secret, and one of the version
// before is taken over as it is. Blocks for the store. Errors: DataLoss; FailedPrecondition (a
// later version wrote it; the version before cannot go back); or as the store.
absl::StatusOr<Beginning> Begin(Store* store, const Options& limits, absl::Time now);

// The version of the rows that this coordinator writes; it reads the one before, too.
inline constexpr int kJournalVersion = 2;

// No coordinator has ever come so far: who has obeyed a later one is not believed.
inline constexpr int64_t kMostEpoch = 1 << 22;

// Coordinators that begin from now on have a higher epoch than `epoch`: somebody has obeyed that
// one. Errors: OutOfRange (no coordinator has ever come so far), or as the store.
absl::Status RaiseEpoch(Store* store, int64_t epoch);

// Makes rows of a backup those of a restored journal: its coordinators have a higher epoch than any
// that used it before the backup, and than the next thousand after that. (One that still meets an
// agent that obeyed a later one goes above that: ServerOptions::on_later.) Errors: DataLoss (no
// journal), FailedPrecondition (of a later version).
absl::Status MakeRestored(std::vector<StoredRow>& rows);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_BEGINNING_H_
