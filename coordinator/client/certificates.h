// SPDX-License-Identifier: Apache-2.0
// The certificates of a cluster, by OpenSSL: the authority that each token carries and what it
// issues to the coordinator; the authority of callers, and what that one issues to those who have
// tokens. Certificates and keys are PEM. Thread-safety: pure functions, but for the random bits of
// new keys.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_CERTIFICATES_H_
#define LOCKSTEP_COORDINATOR_CLIENT_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep::coordinator {

// Certificates are valid from so long before their making on.
inline constexpr absl::Duration kClocksDiffer = absl::Hours(24);

struct Certified {
  std::string certificate;
  std::string key;  // a secret

  bool operator==(const Certified&) const = default;
};

// What a certificate says.
struct CertificateFacts {
  std::string name = {};                // of the subject
  std::vector<std::string> names = {};  // "10.0.0.1", "fd00::1", "head.example.org"
  absl::Time begins;
  absl::Time ends;
};

// Returns the day of a time in UTC, "2031-05-17", as is said of when certificates begin and end.
std::string Day(absl::Time time);

// A new authority with a key on P-256, "Lockstep <of> <some digits>".
absl::StatusOr<Certified> MakeAuthority(absl::Time now, absl::string_view of = "cluster");
// The authority that everybody makes alike who knows these 32 secret bytes (Ed25519).
absl::StatusOr<Certified> AuthorityOf(absl::string_view seed);

// A certificate, with a new key on P-256, for a server that is reached by these names and numeric
// addresses, from a day before `now` on (clocks differ) and for `validity`.
// Errors: InvalidArgument (a name that is none).
absl::StatusOr<Certified> IssueServer(const Certified& authority,
                                      const std::vector<std::string>& names, absl::Time now,
                                      absl::Duration validity);

// A certificate, with a new key on P-256, for a caller of this name (64 plain characters at most),
// to show to servers. It never outlives the authority.
absl::StatusOr<Certified> IssueClient(const Certified& authority, const std::string& name,
                                      absl::Time begins, absl::Time ends);

// Errors (of all that follow): DataLoss, when a text is not what it should be.
absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view certificate);
// A certificate and its key out of a text that has both. Errors: FailedPrecondition, when they do
// not belong together.
absl::StatusOr<Certified> ReadCertified(absl::string_view text);
// OK when one of `authorities` has signed `certificate`. Errors: FailedPrecondition.
absl::Status CheckIssued(absl::string_view certificate, absl::string_view authorities);
// The certificates in a text, in their order; nothing else of it. There is one at least.
absl::StatusOr<std::vector<std::string>> CertificatesIn(absl::string_view text);

// That the coordinator's certificate has expired or will within a month, and what to do; empty: it
// will not.
std::string ExpiryWarning(absl::Time ends, absl::Time now);

// Returns what is to be done about the certificate that is shown to the coordinator: the token's
// has expired, or will within a month that is less than a third of its life. Empty: nothing.
std::string AdmissionWarning(const CertificateFacts& shown, absl::Time now);
// Returns whether so little of its life is left that another one is asked for.
bool EndsSoon(const CertificateFacts& facts, absl::Time now);

// Certificates without PEM's lines around them, one after the other, and back.
absl::StatusOr<std::string> DerOf(absl::string_view certificates);
absl::StatusOr<std::string> PemOf(absl::string_view der);
// The same of a certificate with its key. Errors of the latter: DataLoss, also when they do not
// belong together.
absl::StatusOr<std::string> DerOfCertified(const Certified& certified);
absl::StatusOr<Certified> CertifiedOf(absl::string_view der);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_CERTIFICATES_H_
