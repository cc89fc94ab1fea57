// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/peer_host.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace lockstep::coordinator {

PeerPlace ParsePeer(const std::string& peer) {
  const std::string plain = absl::StrReplaceAll(
      peer, {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}, {"%25", "%"}});
  absl::string_view rest = plain;
  PeerPlace place;
  if (!absl::ConsumePrefix(&rest, "ipv4:") && !absl::ConsumePrefix(&rest, "ipv6:")) return place;
  const size_t colon = rest.rfind(':');
  if (colon == rest.npos || !absl::SimpleAtoi(rest.substr(colon + 1), &place.port)) return {};
  rest = rest.substr(0, colon);
  absl::ConsumePrefix(&rest, "[");
  absl::ConsumeSuffix(&rest, "]");
  rest = rest.substr(0, rest.find('%'));
  const absl::string_view mapped = "::ffff:";
  if (absl::StartsWith(rest, mapped) && absl::StrContains(rest, "."))
    rest.remove_prefix(mapped.size());
  place.host = std::string(rest);
  return place;
}

}  // namespace lockstep::coordinator
