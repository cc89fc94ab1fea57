// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/secrets.h"

#include "absl/strings/str_cat.h"
#include "common/hmac.h"

namespace lockstep::coordinator {

std::string GenerationSecret(const std::string& cluster_secret, const std::string& job_id,
                             int64_t generation) {
  if (cluster_secret.empty()) return "";
  return HmacSha256(cluster_secret, absl::StrCat("generation ", generation, " of job ", job_id));
}

}  // namespace lockstep::coordinator
