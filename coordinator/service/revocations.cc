// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/revocations.h"

#include <errno.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/core/tokens.h"
#include "coordinator/outbox/request_rows.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace lockstep::coordinator {
namespace {

std::string Text(const google::protobuf::Struct& line, const char* name) {
  const auto found = line.fields().find(name);
  return found == line.fields().end() ? "" : found->second.string_value();
}

// What the lines of an audit say of revocations, in their order.
class Revocations {
 public:
  void Take(const google::protobuf::Struct& line) {
    const std::string id = Text(line, "on"), outcome = Text(line, "outcome");
    int& unanswered = unanswered_[{Text(line, "user"), Text(line, "token"), id}];
    if (outcome == "asked") {
      ++unanswered;
      return;
    }
    if (outcome == "ok" || outcome == "unavailable") ids_.insert(id);
    // A refusal is the answer to one request: that before it, which broke off and was repeated, may
    // have been carried out.
    if (unanswered > 0) --unanswered;
  }

  std::set<std::string> Ids() && {
    for (const auto& [request, unanswered] : unanswered_) {
      if (unanswered > 0) ids_.insert(std::get<2>(request));
    }
    return std::move(ids_);
  }

 private:
  std::set<std::string> ids_;
  // By the user and the token of who asks, and the token that is to be revoked.
  std::map<std::tuple<std::string, std::string, std::string>, int> unanswered_;
};

// The id of the token that a row of the journal asks to be made; empty: it asks for none.
std::string TokenAskedFor(const StoredRow& row) {
  if (!IsRequestRow(row.key)) return "";
  const absl::StatusOr<StoredRequest> request = ParseRequestRow({row.key, row.value});
  if (!request.ok()) return "";  // what is damaged is not carried out
  const auto* const created = std::get_if<TokenCreated>(&request->event);
  return created == nullptr ? "" : created->record.info().id();
}

}  // namespace

absl::StatusOr<std::set<std::string>> RevokedTokens(const std::string& file) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) return ErrnoStatus(errno, absl::StrCat("cannot read the audit ", file));
  Revocations revocations;
  std::string text;
  for (int number = 1; std::getline(in, text); ++number) {
    google::protobuf::Struct line;
    if (!google::protobuf::util::JsonStringToMessage(text, &line).ok() ||
        Text(line, "what").empty()) {
      return absl::DataLossError(absl::StrCat("line ", number, " of ", file,
                                              " is none of an audit, and may have been a "
                                              "revocation: look at it, and remove it"));
    }
    if (Text(line, "what") == "revoke_token") revocations.Take(line);
  }
  if (in.bad()) return ErrnoStatus(errno, absl::StrCat("cannot read the audit ", file));
  return std::move(revocations).Ids();
}

int RemoveTokens(const std::set<std::string>& ids, std::vector<StoredRow>& rows) {
  std::set<std::string> keys;
  for (const std::string& id : ids) keys.insert(TokenKey(id));
  const auto left = std::remove_if(rows.begin(), rows.end(), [&](const StoredRow& row) {
    return keys.contains(row.key) || ids.contains(TokenAskedFor(row));
  });
  const auto removed = static_cast<int>(rows.end() - left);
  rows.erase(left, rows.end());
  return removed;
}

}  // namespace lockstep::coordinator
