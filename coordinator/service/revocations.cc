// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/revocations.h"

#include <errno.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/core/tokens.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace lockstep::coordinator {
namespace {

std::string Text(const google::protobuf::Struct& line, const char* name) {
  const auto found = line.fields().find(name);
  return found == line.fields().end() ? "" : found->second.string_value();
}

}  // namespace

absl::StatusOr<std::set<std::string>> RevokedTokens(const std::string& file) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) return ErrnoStatus(errno, absl::StrCat("cannot read the audit ", file));
  std::set<std::string> ids;
  std::string text;
  for (int number = 1; std::getline(in, text); ++number) {
    google::protobuf::Struct line;
    if (!google::protobuf::util::JsonStringToMessage(text, &line).ok() ||
        Text(line, "what").empty()) {
      return absl::DataLossError(absl::StrCat("line ", number, " of ", file,
                                              " is none of an audit, and may have been a "
                                              "revocation: look at it, and remove it"));
    }
    if (Text(line, "what") == "revoke_token" && Text(line, "outcome") == "ok") {
      ids.insert(Text(line, "on"));
    }
  }
  if (in.bad()) return ErrnoStatus(errno, absl::StrCat("cannot read the audit ", file));
  return ids;
}

int RemoveTokens(const std::set<std::string>& ids, std::vector<StoredRow>& rows) {
  std::set<std::string> keys;
  for (const std::string& id : ids) keys.insert(TokenKey(id));
  const auto left = std::remove_if(rows.begin(), rows.end(),
                                   [&](const StoredRow& row) { return keys.count(row.key) != 0; });
  const auto removed = static_cast<int>(rows.end() - left);
  rows.erase(left, rows.end());
  return removed;
}

}  // namespace lockstep::coordinator
