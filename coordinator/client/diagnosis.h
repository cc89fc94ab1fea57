// SPDX-License-Identifier: Apache-2.0
// Why a TLS connection to a coordinator does not come about, in words that say what to do. gRPC
// knows only that it failed.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_DIAGNOSIS_H_
#define LOCKSTEP_COORDINATOR_CLIENT_DIAGNOSIS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/client/client.h"

namespace lockstep::coordinator {

// Connects once to see what speaks there, and shows nothing but the token's certificate.
// FailedPrecondition when that explains it and does not change by itself: one side encrypts and the
// other does not; the coordinator's certificate is of another cluster, expired, or for other names;
// the token's own is not valid yet. Unauthenticated: that is missing, expired or refused. OK: it
// does not, as when nobody listens. Blocks for at most `timeout`, and for the resolver when the
// address is a name.
absl::Status ExplainConnection(const ClientOptions& options, absl::Duration timeout);

// That the certificate of the coordinator there, or of the token, expires soon; empty: they do not,
// or there are none.
// Blocks as ExplainConnection.
std::string CertificateWarning(const ClientOptions& options, absl::Duration timeout);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_DIAGNOSIS_H_
