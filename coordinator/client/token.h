// SPDX-License-Identifier: Apache-2.0
// What callers show a coordinator over TCP, and by what they know the coordinator.
//
// A token is one line of plain letters, digits and signs, kept in a file that nobody but its owner
// reads. That of a cluster with certificates (`coordinator init`) is
//   lockstep2.<secret>.<authorities>.<certificate and key>    (base64url of DER)
// Whoever has it speaks TLS, to a coordinator with a certificate of one of these authorities alone,
// and shows the certificate in the handshake, without which nobody passes it. What the holder may
// do hangs on the secret, which is shown inside. `lockstep1.<secret>.<authorities>`, which earlier
// versions made, has no certificate. Any other token is shown as it is, without encryption.
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
  std::string secret = {};     // what is shown; empty: nothing is
  std::string authority = {};  // PEM, of one or two; empty: the connection is not encrypted
  Certified client = {};       // what opens TLS's handshake; empty: nothing is shown there
};

// The name of the certificate that a token with this secret carries: 64 hexadecimal digits, which
// are the hash that the coordinator keeps.
std::string NameOfToken(absl::string_view secret);

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
// The token of these parts. Errors: DataLoss (`authority` or `client` is no certificate).
absl::StatusOr<std::string> TokenOf(const Token& parts);

// Where the parts are in a token that ParseToken takes, without a look at the certificates: reading
// those takes OpenSSL a millisecond.
struct TokenPlaces {
  absl::string_view kind = {};  // "lockstep2."; empty: the token is its secret alone
  absl::string_view secret = {};
  absl::string_view rest = {};  // with its first dot
};
// The places of a token's parts.
TokenPlaces PlacesOf(absl::string_view token);
// The same token with another secret.
std::string WithSecret(absl::string_view token, absl::string_view secret);

// A hash of the authorities of a token; of none it is not empty either. Errors: DataLoss.
absl::StatusOr<std::string> HashOfAuthorities(absl::string_view authorities);

// What the hosts of a run without a daemon make out of the one secret that they share
// (LOCKSTEP_TOKEN), each by itself.
struct RunCredentials {
  std::string token;    // that callers show; its certificate is this host's own
  Certified authority;  // of the coordinator and its callers
};
// Takes about 0.1 s on purpose, so that short secrets are not found out by trying. Errors:
// FailedPrecondition (it is too short).
absl::StatusOr<RunCredentials> CredentialsOfRun(const std::string& shared);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_TOKEN_H_
