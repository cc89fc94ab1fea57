// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/store.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {

absl::Status CheckKeys(absl::Span<const Put> rows) {
  constexpr size_t kShown = 64;
  for (const Put& put : rows) {
    if (put.key.size() <= kMostKeyBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the key of row '", absl::CEscape(put.key.substr(0, kShown)), "...' has ",
                     put.key.size(), " bytes, and may have ", kMostKeyBytes));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::coordinator
