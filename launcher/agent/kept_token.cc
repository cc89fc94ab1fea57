// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/kept_token.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "coordinator/client/certificates.h"
#include "coordinator/client/private_file.h"
#include "coordinator/client/token.h"

namespace lockstep::launcher {
namespace {

std::string FileIn(const std::string& folder) { return absl::StrCat(folder, "/token"); }

// From when on a token's certificate is valid: the newer one's is later.
absl::Time BeginOf(const coordinator::Token& token) {
  const auto facts = coordinator::ReadCertificate(token.client.certificate);
  return facts.ok() ? facts->begins : absl::InfinitePast();
}

}  // namespace

std::string NewerToken(const std::string& state_folder, const std::string& token) {
  const absl::StatusOr<coordinator::Token> given = coordinator::ParseToken(token);
  if (state_folder.empty() || !given.ok() || given->authority.empty()) return token;
  const absl::StatusOr<std::string> kept = coordinator::ReadToken(FileIn(state_folder));
  if (!kept.ok()) return token;
  const absl::StatusOr<coordinator::Token> parts = coordinator::ParseToken(*kept);
  const bool newer =
      parts.ok() && parts->secret == given->secret && BeginOf(*parts) > BeginOf(*given);
  return newer ? *kept : token;
}

absl::Status KeepToken(const std::string& state_folder, const std::string& token) {
  return coordinator::WritePrivateFile(FileIn(state_folder), "the node's token",
                                       absl::StrCat(token, "\n"), /*replace=*/true);
}

}  // namespace lockstep::launcher
