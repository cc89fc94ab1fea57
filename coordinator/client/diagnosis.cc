// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/diagnosis.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/status.h"
#include "coordinator/client/certificates.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/knock.h"
#include "coordinator/client/token.h"

namespace lockstep::coordinator {
namespace {

// Says what is wrong with the token's certificate, which the coordinator asks for.
absl::Status ExplainAdmission(const Token& token, const std::string& address) {
  const std::string another = ": ask an administrator for another one (`launcher token create`)";
  if (token.client.certificate.empty()) {
    return absl::UnauthenticatedError(
        absl::StrCat("the coordinator at ", address,
                     " lets in who shows a certificate, and the token has none, as those of "
                     "earlier versions",
                     another));
  }
  const absl::Time now = Clock::Real()->Now();
  LS_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(token.client.certificate));
  if (facts.ends <= now) {
    return absl::UnauthenticatedError(absl::StrCat("the token's certificate expired on ",
                                                   Day(facts.ends), ", and so did the ", "token",
                                                   another));
  }
  if (facts.begins > now) {
    return absl::FailedPreconditionError(absl::StrCat("the token's certificate is valid from ",
                                                      Day(facts.begins),
                                                      " on: look at the clocks of both hosts"));
  }
  return absl::UnauthenticatedError(
      absl::StrCat("the coordinator at ", address,
                   " does not take the token's certificate: the token was revoked or has expired, "
                   "or the cluster has a new authority",
                   another));
}

absl::Status ExplainCertificate(const Knock& knock, const std::string& address,
                                const std::string& host) {
  const Knock::Verdict verdict = knock.verdict();
  if (verdict == Knock::Verdict::kGood) return absl::OkStatus();
  const CertificateFacts facts =
      ReadCertificate(knock.PeersCertificate()).value_or(CertificateFacts());
  const std::string its = absl::StrCat("the certificate of the coordinator at ", address);
  switch (verdict) {
    case Knock::Verdict::kExpired:
      return absl::FailedPreconditionError(
          absl::StrCat(its, " expired on ", Day(facts.ends),
                       ": run `coordinator init` again on its host, which keeps the token"));
    case Knock::Verdict::kOfTheFuture:
      return absl::FailedPreconditionError(absl::StrCat(its, " is valid from ", Day(facts.begins),
                                                        " on: look at the clocks of both hosts"));
    case Knock::Verdict::kOfAnotherName:
      return absl::FailedPreconditionError(
          absl::StrCat(its, " is for ", absl::StrJoin(facts.names, ", "), ", not for ", host,
                       ": name one of these, or run `coordinator init --host ", host,
                       "` on its host with all its names"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat("the coordinator at ", address,
                       " is of another cluster than the token (or another run's): its certificate "
                       "is not of the token's authority. Take the token from that coordinator's "
                       "host, or name the token's own coordinator"));
  }
}

}  // namespace

absl::Status ExplainConnection(const ClientOptions& options, absl::Duration timeout) {
  LS_ASSIGN_OR_RETURN(const Token token, ParseToken(CurrentToken(options)));
  Knock knock(options.address, {token.authority, token.client}, Clock::Real()->Now() + timeout);
  const Knock::End end = knock.Run();
  if (end == Knock::End::kUnknown) {
    // TLS 1.2 asks before its handshake is through.
    const bool turned_away = knock.asked() && !token.authority.empty();
    return turned_away ? ExplainAdmission(token, options.address) : absl::OkStatus();
  }
  const bool tls = end == Knock::End::kThrough;
  if (token.authority.empty()) {
    if (!tls) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator at ", options.address, " speaks TLS alone, and ",
        options.token.empty() ? "no token was given" : "the token is not that of its cluster",
        ": give the token file that `coordinator init` made on its host (--token-file); a run over "
        "several hosts has --plaintext on all of them or on none"));
  }
  if (tls) {
    LS_RETURN_IF_ERROR(ExplainCertificate(knock, options.address, HostOf(options.address)));
    if (!knock.asked() || !knock.TurnsAway()) return absl::OkStatus();
    return ExplainAdmission(token, options.address);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "what listens at ", options.address,
      " does not speak TLS, which the token asks for: start the coordinator there with the state "
      "directory of `coordinator init` and without --plaintext; a run over several hosts has "
      "--plaintext on all of them or on none"));
}

std::string CertificateWarning(const ClientOptions& options, absl::Duration timeout) {
  const absl::StatusOr<Token> token = ParseToken(CurrentToken(options));
  if (!token.ok() || token->authority.empty()) return "";
  Knock knock(options.address, {token->authority, token->client}, Clock::Real()->Now() + timeout);
  if (knock.Run() != Knock::End::kThrough) return "";
  const absl::StatusOr<CertificateFacts> facts = ReadCertificate(knock.PeersCertificate());
  std::string warning = facts.ok() ? ExpiryWarning(facts->ends, Clock::Real()->Now()) : "";
  if (!warning.empty() || token->client.certificate.empty()) return warning;
  const absl::StatusOr<CertificateFacts> own = ReadCertificate(token->client.certificate);
  return own.ok() ? AdmissionWarning(*own, Clock::Real()->Now()) : "";
}

}  // namespace lockstep::coordinator
