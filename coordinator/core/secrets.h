// SPDX-License-Identifier: Apache-2.0
// What the members of one generation know and nobody else.
// Thread-safety: pure function.
#ifndef LOCKSTEP_COORDINATOR_CORE_SECRETS_H_
#define LOCKSTEP_COORDINATOR_CORE_SECRETS_H_

#include <cstdint>
#include <string>

namespace lockstep::coordinator {

// 32 bytes: HMAC-SHA-256 (RFC 2104) of the job and the generation under the cluster's secret. A
// coordinator that goes on from the journal makes the same ones again. Empty without a secret, as
// of tests.
std::string GenerationSecret(const std::string& cluster_secret, const std::string& job_id,
                             int64_t generation);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_SECRETS_H_
