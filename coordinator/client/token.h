// SPDX-License-Identifier: Apache-2.0
// What callers show a coordinator over TCP, and by what they know the coordinator.
//
// A token is one line of plain letters, digits and signs, kept in a file that nobody but its owner
// reads. That of a cluster with certificates (`coordinator init`) is
//   lockstep1.<secret>.<certificate of the cluster's authority, base64url>
// and whoever has it speaks TLS, to a coordinator with a certificate of this authority alone. Only
// the secret is shown, inside. Any other token is shown as it is, without encryption.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_TOKEN_H_
#define LOCKSTEP_COORDINATOR_CLIENT_TOKEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/client/certificates.h"

namespace lockstep::coordinator {

struct Token {
  std::string secret;     // what is shown; empty: nothing is
  std::string authority;  // PEM; empty: the connection is not encrypted
};

// The token in `text` without blanks around it, or none when `text` is empty; `where` names its
// place in messages. The one rule of what a token may be. Errors: FailedPrecondition.
absl::StatusOr<std::string> CheckToken(absl::string_view text, absl::string_view where);

// The token in `file`, which may be a pipe. Errors: NotFound; FailedPrecondition (permission; a
// file that others can read, or that belongs to somebody else; no token in it).
absl::StatusOr<std::string> ReadToken(const std::string& file);

// All tokens in `file`, one a line; callers show the first, and the coordinator takes the others,
// too, while they are being replaced. Errors: as ReadToken.
absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& file);

// The parts of a token. Errors: FailedPrecondition, when it begins as one of a cluster with
// certificates and does not go on like that.
absl::StatusOr<Token> ParseToken(absl::string_view token);
// The token of these parts. Errors: DataLoss (`authority` is no certificate).
absl::StatusOr<std::string> TokenOf(const Token& parts);

// What the hosts of a run without a daemon make out of the one secret that they share
// (LOCKSTEP_TOKEN), each by itself.
struct RunCredentials {
  std::string token;    // that callers show
  Certified authority;  // which the coordinator's certificate is of
};
// Takes about 0.1 s on purpose, so that short secrets are not found out by trying. Errors:
// FailedPrecondition (it is too short).
absl::StatusOr<RunCredentials> CredentialsOfRun(const std::string& shared);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_TOKEN_H_
