// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/epoch_proof.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/hmac.h"

namespace lockstep::coordinator {

std::string EpochProof(const std::string& cluster_secret, int64_t epoch) {
  if (cluster_secret.empty()) return "";
  return HmacSha256(cluster_secret, absl::StrCat("epoch ", epoch));
}

bool ProvesEpoch(absl::string_view proof, const std::string& cluster_secret, int64_t epoch) {
  const std::string right = EpochProof(cluster_secret, epoch);
  if (right.empty() || proof.size() != right.size()) return false;
  int differs = 0;
  for (size_t i = 0; i < right.size(); ++i) differs |= proof[i] ^ right[i];
  return differs == 0;
}

}  // namespace lockstep::coordinator
