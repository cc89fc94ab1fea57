// SPDX-License-Identifier: Apache-2.0
// What an audit (audit.h) knows of revoked tokens, for a journal that is restored from a backup:
// that one has those again that were revoked after it. Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_REVOCATIONS_H_
#define LOCKSTEP_COORDINATOR_SERVICE_REVOCATIONS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {

// Returns the ids of all tokens that the audit `file` says were revoked, or may have been: asked
// for, and neither carried out nor refused by the coordinator that was asked. An id is given once,
// so that it does not matter when. Blocks for the file system. Errors: NotFound, Unavailable (it
// cannot be read), DataLoss (a line is none of an audit, which may be a revocation).
absl::StatusOr<std::set<std::string>> RevokedTokens(const std::string& file);

// Takes the rows of these tokens out of a journal's, and those that ask for them to be made;
// returns how many there were.
int RemoveTokens(const std::set<std::string>& ids, std::vector<StoredRow>& rows);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_REVOCATIONS_H_
