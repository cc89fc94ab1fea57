// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/token_issuer.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/client/token.h"
#include "coordinator/service/cluster_files.h"

namespace lockstep::coordinator {

absl::StatusOr<TokenIssuer::Means> TokenIssuer::Read() const {
  if (folder_.empty()) return means_;
  Means means;
  const auto read = [&]() -> absl::Status {
    LS_ASSIGN_OR_RETURN(const std::string text, ReadToken(token_file_));
    LS_ASSIGN_OR_RETURN(const Token token, ParseToken(text));
    means.authorities = token.authority;
    LS_ASSIGN_OR_RETURN(const std::optional<Callers> callers, ReadCallers(folder_));
    if (!callers.has_value()) {
      return absl::NotFoundError(absl::StrCat(CallersFile(folder_), " is not there"));
    }
    means.callers = callers->newest;
    return absl::OkStatus();
  };
  if (absl::Status done = read(); !done.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the coordinator cannot issue a certificate: ", done.message(),
                     ": run `coordinator init` again with its --state-dir"));
  }
  return means;
}

absl::StatusOr<std::string> TokenIssuer::TokenFor(absl::string_view secret, const std::string& name,
                                                  absl::Time ends, absl::Time now) const {
  LS_ASSIGN_OR_RETURN(const Means means, Read());
  Token token;
  token.secret = std::string(secret);
  token.authority = means.authorities;
  if (!means.authorities.empty()) {
    LS_ASSIGN_OR_RETURN(token.client, IssueClient(means.callers, name, now - kClocksDiffer, ends));
  }
  return TokenOf(token);
}

absl::StatusOr<bool> TokenIssuer::IsCurrent(const std::string& certificate,
                                            absl::string_view authorities_hash, absl::Time ends,
                                            absl::Time now) const {
  LS_ASSIGN_OR_RETURN(const Means means, Read());
  if (means.authorities.empty()) return true;
  LS_ASSIGN_OR_RETURN(const std::string hash, HashOfAuthorities(means.authorities));
  if (certificate.empty() || hash != authorities_hash ||
      !CheckIssued(certificate, means.callers.certificate).ok()) {
    return false;
  }
  LS_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(certificate));
  if (!EndsSoon(facts, now)) return true;
  LS_ASSIGN_OR_RETURN(const CertificateFacts issuer, ReadCertificate(means.callers.certificate));
  // Another one would not last longer.
  return facts.ends + absl::Seconds(1) >= std::min(ends, issuer.ends);
}

}  // namespace lockstep::coordinator
