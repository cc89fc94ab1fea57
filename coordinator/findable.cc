// SPDX-License-Identifier: Apache-2.0
#include "coordinator/findable.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/client/certificates.h"
#include "coordinator/client/default_address.h"
#include "coordinator/service/cluster_files.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/wall_clock.h"

namespace lockstep::coordinator {
namespace {

// The file of the cluster's tokens in a state folder.
std::string TokenFileIn(const std::string& folder) { return absl::StrCat(folder, "/token"); }

// Adds the secrets of `tokens` from the place `first` on. Errors: FailedPrecondition.
absl::Status AddSecrets(const std::vector<std::string>& tokens, size_t first,
                        std::vector<std::string>* secrets) {
  for (size_t i = first; i < tokens.size(); ++i) {
    LS_ASSIGN_OR_RETURN(Token token, ParseToken(tokens[i]));
    secrets->push_back(std::move(token.secret));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Findable::Choose(Flags& flags) {
  if (flags.server.listen.empty()) {
    LS_ASSIGN_OR_RETURN(const std::string folder, MakeRuntimeFolder());
    flags.server.listen = DefaultAddressIn(folder);
  }
  if (flags.tls_of_token) return DeriveTls(flags);
  if (!flags.store.state.folder.empty() && IsTcpAddress(flags.server.listen)) {
    LS_RETURN_IF_ERROR(ReadTls(flags));
  }
  const bool reachable = flags.server.plaintext || flags.server.tls.has_value();
  LS_RETURN_IF_ERROR(CheckListenAddress(flags.server.listen, reachable));
  token_file_ = flags.token_file;
  if (token_file_.empty() && !IsTcpAddress(flags.server.listen)) return ReadUnasked(flags);
  if (token_file_.empty()) {
    std::string folder = flags.store.state.folder;
    if (folder.empty()) {
      LS_ASSIGN_OR_RETURN(folder, MakeRuntimeFolder());
    }
    token_file_ = TokenFileIn(folder);
  }
  LS_RETURN_IF_ERROR(ReadOrMakeToken(token_file_).status());
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> tokens, ReadTokens(token_file_));
  LS_ASSIGN_OR_RETURN(const Token token, ParseToken(tokens.front()));
  flags.server.token = token.secret;
  if (flags.server.tls.has_value()) {
    flags.server.issuer = TokenIssuer(flags.store.state.folder, token_file_);
  }
  LS_RETURN_IF_ERROR(AddSecrets(tokens, /*first=*/1, &flags.server.other_tokens));
  if (tokens.size() > 1) {
    LS_LOG_WARNING << "tokens that are being replaced are taken, too (" << tokens.size() - 1
                   << "): remove them from " << token_file_ << " when nobody shows them any more";
  }
  return CheckTls(flags, token);
}

// Reads the cluster's tokens, if the state folder has some, for those who show one on a socket that
// asks for none: a token says more than the socket. One that cannot be read keeps nobody else out.
absl::Status Findable::ReadUnasked(Flags& flags) {
  const std::string& folder = flags.store.state.folder;
  if (folder.empty()) return absl::OkStatus();
  const std::string file = TokenFileIn(folder);
  const absl::StatusOr<std::vector<std::string>> tokens = ReadTokens(file);
  if (absl::IsNotFound(tokens.status())) return absl::OkStatus();
  absl::Status added =
      tokens.ok() ? AddSecrets(*tokens, /*first=*/0, &flags.server.other_tokens) : tokens.status();
  if (!added.ok()) {
    LS_LOG_WARNING << "who shows the token in " << file << " is refused: " << added.message();
  }
  return absl::OkStatus();
}

// Returns what the certificate is by now.
std::string Findable::Warning() const {
  if (certificates_.empty()) return "";
  const auto server = ReadServerCertificate(certificates_);
  if (!server.ok() || !server->has_value()) return "";
  const absl::StatusOr<CertificateFacts> facts = ReadCertificate((*server)->certificate);
  return facts.ok() ? ExpiryWarning(facts->ends, WallClock()->Now()) : "";
}

// Reads what `coordinator init` left in the state folder, if it was there.
absl::Status Findable::ReadTls(Flags& flags) {
  const std::string& folder = flags.store.state.folder;
  LS_ASSIGN_OR_RETURN(const std::optional<Certified> server, ReadServerCertificate(folder));
  if (!server.has_value()) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(const std::optional<Callers> callers, ReadCallers(folder));
  if (!callers.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder,
        " is of an earlier version, in which callers had no certificates: run `coordinator ",
        "init --state-dir ", folder, "`, which keeps all else, and start the coordinator with ",
        "--admit-without-certificate until nodes and users have renewed their tokens"));
  }
  ServerTls tls;
  tls.server = *server;
  tls.callers = callers->all;
  tls.folder = folder;
  tls.optional = flags.admit_without_certificate;
  if (tls.optional) {
    LS_LOG_WARNING << "callers without a certificate are let in (--admit-without-certificate)";
  }
  flags.server.tls = std::move(tls);
  return absl::OkStatus();
}

void Findable::Announce(const std::string& address) {
  if (token_file_.empty()) return;
  LS_LOG_INFO << "callers show the token in " << token_file_;
  if (!IsTcpAddress(address)) return;
  const absl::StatusOr<std::string> folder = MakeRuntimeFolder();
  absl::StatusOr<TokenLinkFile> link =
      folder.ok() ? TokenLinkFile::Make(token_file_, TokenLink(*folder, address)) : folder.status();
  if (link.ok()) {
    link_ = *std::move(link);
  } else {
    LS_LOG_WARNING << "the launcher needs --token-file: " << link.status().message();
  }
}

// Derives what hosts that share a secret derive from it. No link leads to it: a verb would show it
// as it is.
absl::Status Findable::DeriveTls(Flags& flags) {
  LS_ASSIGN_OR_RETURN(const std::string shared, ReadToken(flags.token_file));
  LS_ASSIGN_OR_RETURN(const RunCredentials run, CredentialsOfRun(shared));
  LS_ASSIGN_OR_RETURN(const Token token, ParseToken(run.token));
  flags.server.token = token.secret;
  flags.server.issuer = TokenIssuer({token.authority, run.authority});
  std::vector<std::string> names = OwnNames();
  names.push_back(HostOf(flags.server.listen));
  ServerTls tls;
  LS_ASSIGN_OR_RETURN(tls.server,
                      IssueServer(run.authority, names, Clock::Real()->Now(), kServerValidity));
  tls.callers = run.authority.certificate;
  flags.server.tls = std::move(tls);
  return absl::OkStatus();
}

// That the certificate and the token belong together, and suit the address.
absl::Status Findable::CheckTls(const Flags& flags, const Token& token) {
  if (!IsTcpAddress(flags.server.listen)) return absl::OkStatus();
  const std::string& folder = flags.store.state.folder;
  if (!flags.server.tls.has_value()) {
    if (token.authority.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "the token in ", token_file_, " asks for TLS, and there is no certificate: give the ",
        "--state-dir of `coordinator init`"));
  }
  if (flags.server.plaintext) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, " has certificates, and who has its token speaks TLS: leave --plaintext out"));
  }
  const std::string& certificate = flags.server.tls->server.certificate;
  if (token.authority.empty() || !CheckIssued(certificate, token.authority).ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the token in ", token_file_, " does not belong to the certificate in ",
                     folder, ": run `coordinator init` again with --state-dir ", folder));
  }
  LS_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(certificate));
  certificates_ = folder;
  const std::string host = HostOf(flags.server.listen);
  const bool any = host == "0.0.0.0" || host == "::";
  if (!any && std::find(facts.names.begin(), facts.names.end(), host) == facts.names.end()) {
    LS_LOG_WARNING << "the certificate is not for " << host << ", where this listens, but for "
                   << absl::StrJoin(facts.names, ", ")
                   << ": run `coordinator init` again with --host " << host;
  }
  return absl::OkStatus();
}

}  // namespace lockstep::coordinator
