// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/peer_host.h"

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace lockstep::coordinator {

std::string PeerHost(const std::string& peer) {
  const std::string plain = absl::StrReplaceAll(
      peer, {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}, {"%25", "%"}});
  absl::string_view rest = plain;
  if (!absl::ConsumePrefix(&rest, "ipv4:") && !absl::ConsumePrefix(&rest, "ipv6:")) return "";
  rest = rest.substr(0, rest.rfind(':'));
  absl::ConsumePrefix(&rest, "[");
  absl::ConsumeSuffix(&rest, "]");
  const absl::string_view mapped = "::ffff:";
  if (absl::StartsWith(rest, mapped) && absl::StrContains(rest, "."))
    rest.remove_prefix(mapped.size());
  return std::string(rest);
}

}  // namespace lockstep::coordinator
