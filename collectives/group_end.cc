// SPDX-License-Identifier: Apache-2.0
#include "collectives/group_end.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"

namespace lockstep {
namespace {

constexpr char kUrl[] = "lockstep/group-end";
constexpr char kMissingUrl[] = "lockstep/missing";

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

absl::Status WithMissing(absl::Status status, const std::vector<MissingRank>& missing) {
  LS_CHECK(!status.ok());
  // A line for each: its rank and the text.
  std::string lines;
  for (const MissingRank& each : missing) {
    absl::StrAppend(&lines, each.rank, " ", absl::CEscape(each.text), "\n");
  }
  status.SetPayload(kMissingUrl, absl::Cord(lines));
  return status;
}

std::vector<MissingRank> MissingOf(const absl::Status& status) {
  std::vector<MissingRank> missing;
  const absl::optional<absl::Cord> payload = status.GetPayload(kMissingUrl);
  if (!payload.has_value()) {
    const int lost = EndOf(status).lost_rank();
    if (lost >= 0) missing.push_back({lost, std::string(status.message())});
    return missing;
  }
  const std::string lines(*payload);
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    MissingRank& each = missing.emplace_back();
    LS_CHECK(absl::SimpleAtoi(parts.first, &each.rank) && absl::CUnescape(parts.second, &each.text))
        << lines;
  }
  return missing;
}

}  // namespace lockstep
