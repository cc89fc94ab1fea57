// SPDX-License-Identifier: Apache-2.0
// Makes tokens out of secrets: adds the authorities that their holders trust, and a certificate of
// the authority of callers, with which they pass TLS's handshake.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_TOKEN_ISSUER_H_
#define LOCKSTEP_COORDINATOR_SERVICE_TOKEN_ISSUER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/client/certificates.h"

namespace lockstep::coordinator {

class TokenIssuer {
 public:
  // What it issues with. Without authorities tokens are their secrets, as nothing is encrypted.
  struct Means {
    std::string authorities;  // of the coordinator; PEM
    Certified callers;        // the authority of callers
  };
  // Always the same.
  explicit TokenIssuer(Means means = {}) : means_(std::move(means)) {}
  // What `coordinator init` left in `folder` and in the cluster's `token_file`, read for each
  // token, as both may be renewed meanwhile.
  TokenIssuer(std::string folder, std::string token_file)
      : folder_(std::move(folder)), token_file_(std::move(token_file)) {}

  // Returns whether what it makes speaks TLS.
  bool IssuesCertificates() const { return !folder_.empty() || !means_.authorities.empty(); }
  // The token with this secret and a certificate of the given name (NameOfToken), which is valid
  // until the token's end, `ends` (never: as long as the authority). Errors: Unavailable (a file
  // cannot be read), with what to do.
  absl::StatusOr<std::string> TokenFor(absl::string_view secret, const std::string& name,
                                       absl::Time ends, absl::Time now) const;
  // Returns whether a caller who shows `certificate` (PEM) and trusts authorities of this hash
  // (HashOfAuthorities) has what TokenFor would make: neither is being replaced or ends soon.
  absl::StatusOr<bool> IsCurrent(const std::string& certificate, absl::string_view authorities_hash,
                                 absl::Time ends, absl::Time now) const;

 private:
  absl::StatusOr<Means> Read() const;

  Means means_;
  std::string folder_, token_file_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_TOKEN_ISSUER_H_
