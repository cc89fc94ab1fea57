// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/etcd/options.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lockstep::coordinator {

absl::StatusOr<EtcdOptions> ParseEtcdAddress(absl::string_view address) {
  const absl::Status wrong = absl::InvalidArgumentError(absl::StrCat(
      "a store is such as etcd://host1:2379,host2:2379/prefix (etcds:// with TLS), not '", address,
      "'"));
  EtcdOptions options;
  absl::string_view rest = address;
  options.tls = absl::ConsumePrefix(&rest, "etcds://");
  if (!options.tls && !absl::ConsumePrefix(&rest, "etcd://")) return wrong;
  const size_t slash = rest.find('/');
  for (const absl::string_view endpoint : absl::StrSplit(rest.substr(0, slash), ',')) {
    const size_t colon = endpoint.rfind(':');
    int port = 0;
    if (colon == absl::string_view::npos || colon == 0 ||
        !absl::SimpleAtoi(endpoint.substr(colon + 1), &port) || port < 1 || port > 65535) {
      return wrong;
    }
    options.endpoints.emplace_back(endpoint);
  }
  if (slash != absl::string_view::npos) {
    absl::string_view prefix = rest.substr(slash + 1);
    while (absl::ConsumeSuffix(&prefix, "/")) {
    }
    if (!prefix.empty()) options.prefix = absl::StrCat("/", prefix, "/");
  }
  return options;
}

}  // namespace lockstep::coordinator
