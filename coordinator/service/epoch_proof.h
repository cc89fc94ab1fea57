// SPDX-License-Identifier: Apache-2.0
// How an agent shows that it has obeyed a later coordinator than the one that it speaks to, whose
// journal is an older copy. Each coordinator gives its agents a proof of its epoch, derived from
// the journal's secret, which copies of the journal have and no agent does: so nobody can claim an
// epoch that never was. Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_EPOCH_PROOF_H_
#define LOCKSTEP_COORDINATOR_SERVICE_EPOCH_PROOF_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep::coordinator {

// 32 bytes; empty without a secret.
std::string EpochProof(const std::string& cluster_secret, int64_t epoch);

// Returns whether `proof` is that of `epoch`; without a secret nothing is. Takes as long whatever
// is wrong with it.
bool ProvesEpoch(absl::string_view proof, const std::string& cluster_secret, int64_t epoch);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_EPOCH_PROOF_H_
