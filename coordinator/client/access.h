// SPDX-License-Identifier: Apache-2.0
// The calls about tokens (proto/access.proto): an administrator's, and those of a token's holder.
// Thread-safety: thread-safe. Each call blocks until the reply or `timeout`, and waits for a
// coordinator as CallUntilAnswered does (call.h). Errors of all: Unavailable (nobody answers),
// FailedPrecondition (TLS does not come about, with what to do), Unauthenticated (the token is not
// taken), PermissionDenied, and those of the call.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_ACCESS_H_
#define LOCKSTEP_COORDINATOR_CLIENT_ACCESS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/client/client.h"
#include "proto/access.pb.h"

namespace lockstep::coordinator {

// Is sent once: when it may have arrived and nobody answered, the error is marked (IsUnanswered).
absl::StatusOr<CreateTokenResponse> CreateToken(const ClientOptions& options,
                                                const CreateTokenRequest& request,
                                                absl::Duration timeout);
absl::StatusOr<ListTokensResponse> ListTokens(const ClientOptions& options, absl::Duration timeout);
// NotFound of one that is not there when it is asked again says that this call may have revoked it,
// and is marked (IsUnanswered): nobody can tell it from one that never was.
absl::StatusOr<RevokeTokenResponse> RevokeToken(const ClientOptions& options,
                                                const RevokeTokenRequest& request,
                                                absl::Duration timeout);
absl::StatusOr<Requester> WhoAmI(const ClientOptions& options, absl::Duration timeout);
// The same token with a new certificate and the authorities of now; none: it has these already, or
// has none and needs none. `whatever`: a new certificate in any case.
absl::StatusOr<std::optional<std::string>> RenewToken(const ClientOptions& options, bool whatever,
                                                      absl::Duration timeout);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_ACCESS_H_
