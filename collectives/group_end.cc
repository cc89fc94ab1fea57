// SPDX-License-Identifier: Apache-2.0
#include "collectives/group_end.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lockstep {
namespace {

constexpr char kUrl[] = "lockstep/group-end";

}  // namespace

std::string NameOf(const GroupMember& member) {
  if (member.host.empty()) return absl::StrCat("rank ", member.rank);
  return absl::StrCat("rank ", member.rank, " (host ", member.host, ")");
}

absl::Status WithEnd(absl::Status status, GroupEnd end) {
  LS_CHECK(!status.ok());
  // One character for the cause, then the rank, and '+' for hearsay.
  const char cause = static_cast<char>('a' + static_cast<int>(end.cause));
  status.SetPayload(
      kUrl, absl::Cord(absl::StrCat(std::string(1, cause), end.rank, end.hearsay ? "+" : "")));
  return status;
}

absl::Status NoAddress(const GroupMember& without, const GroupMember& other, int peer) {
  return WithEnd(absl::DeadlineExceededError(
                     absl::StrCat(NameOf(other), " is on another node than ", NameOf(without),
                                  ", whose node has no address for workers of other nodes: "
                                  "--interfaces leaves none there")),
                 {EndCause::kUnreachable, peer});
}

GroupEnd EndOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kUrl);
  GroupEnd end;
  if (!payload.has_value()) return end;
  std::string text(*payload);
  end.hearsay = text.back() == '+';
  if (end.hearsay) text.pop_back();
  LS_CHECK(absl::SimpleAtoi(text.substr(1), &end.rank)) << text;
  end.cause = static_cast<EndCause>(text[0] - 'a');
  return end;
}

}  // namespace lockstep
