// SPDX-License-Identifier: Apache-2.0
// How callers find a coordinator and know each other: the default socket, the token, and the
// certificate of TLS.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_FINDABLE_H_
#define LOCKSTEP_COORDINATOR_FINDABLE_H_

#include <string>

#include "absl/status/status.h"
#include "coordinator/client/token.h"
#include "coordinator/flags.h"
#include "coordinator/service/token_file.h"

namespace lockstep::coordinator {

// Where one coordinator is found, and by what it is known.
class Findable {
 public:
  // Fills in the address, the token and the certificate that the flags leave open. Errors: what
  // does not go together, or cannot be read.
  absl::Status Choose(Flags& flags);

  // Leaves the link to the token of `address`. Whoever is told the token's file needs none.
  void Announce(const std::string& address);

  // Where the tokens are; empty: callers need none.
  const std::string& token_file() const { return token_file_; }

  // That the certificate expires soon; empty: it does not.
  std::string Warning() const;

 private:
  absl::Status ReadUnasked(Flags& flags);
  absl::Status ReadTls(Flags& flags);
  absl::Status DeriveTls(Flags& flags);
  absl::Status CheckTls(const Flags& flags, const Token& token);

  std::string token_file_;
  TokenLinkFile link_;
  std::string certificates_;  // the folder that they are in; empty: there are none
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_FINDABLE_H_
