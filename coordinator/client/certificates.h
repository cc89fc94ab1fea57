// SPDX-License-Identifier: Apache-2.0
// The certificates of a cluster, by OpenSSL: one authority, which each token carries, and what it
// issues to the coordinator. Certificates and keys are PEM.
// Thread-safety: pure functions, but for the random bits of new keys.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_CERTIFICATES_H_
#define LOCKSTEP_COORDINATOR_CLIENT_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep::coordinator {

struct Certified {
  std::string certificate;
  std::string key;  // a secret
};

// What a certificate says.
struct CertificateFacts {
  std::vector<std::string> names;  // "10.0.0.1", "fd00::1", "head.example.org"
  absl::Time begins;
  absl::Time ends;
};

// A new authority with a key on P-256.
absl::StatusOr<Certified> MakeAuthority(absl::Time now);
// The authority that everybody makes alike who knows these 32 secret bytes (Ed25519).
absl::StatusOr<Certified> AuthorityOf(absl::string_view seed);

// A certificate, with a new key on P-256, for a server that is reached by these names and numeric
// addresses, from a day before `now` on (clocks differ) and for `validity`.
// Errors: InvalidArgument (a name that is none).
absl::StatusOr<Certified> IssueServer(const Certified& authority,
                                      const std::vector<std::string>& names, absl::Time now,
                                      absl::Duration validity);

// Errors (of all that follow): DataLoss, when a text is not what it should be.
absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view certificate);
// A certificate and its key out of a text that has both. Errors: FailedPrecondition, when they do
// not belong together.
absl::StatusOr<Certified> ReadCertified(absl::string_view text);
// OK when `authority` has signed `certificate`. Errors: FailedPrecondition.
absl::Status CheckIssued(absl::string_view certificate, absl::string_view authority);

// That the coordinator's certificate has expired or will within a month, and what to do; empty: it
// will not.
std::string ExpiryWarning(absl::Time ends, absl::Time now);

// A certificate without PEM's lines around it, and back.
absl::StatusOr<std::string> DerOf(absl::string_view certificate);
absl::StatusOr<std::string> PemOf(absl::string_view der);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_CERTIFICATES_H_
