// SPDX-License-Identifier: Apache-2.0
// gRPC's status and Abseil's have the same codes; this is the one place that maps them. A refusal
// that is marked (already_so.h) stays so.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_GRPC_STATUS_H_
#define LOCKSTEP_COORDINATOR_CLIENT_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "common/already_so.h"

namespace lockstep::coordinator {

inline absl::Status FromGrpc(const grpc::Status& status) {
  absl::Status mapped(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (status.error_details() == kAlreadySo) mapped.SetPayload(kAlreadySo, absl::Cord());
  return mapped;
}

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      IsAlreadySo(status) ? kAlreadySo : "");
}

// Returns whether nobody served the call, so that it may be made again. CANCELLED is what gRPC's
// server says of the calls that it still has when it is stopped. UNKNOWN with these words is what
// gRPC now and then makes of a connection that ended in the middle of a call (grpc/grpc issues
// 13800, 34076); the coordinator itself answers with no such code. REQUIRES: the caller did not
// cancel it itself.
inline bool NobodyServed(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::CANCELLED ||
         (status.error_code() == grpc::StatusCode::UNKNOWN &&
          status.error_message() == "Stream removed");
}

// Returns whether a call that nobody answered may have come to a coordinator, which may have
// carried it out. `connected`: its channel was ready when it ended. A coordinator that refuses to
// take calls says so itself; one that ends says it also of what it was writing down.
inline bool MayHaveArrived(const grpc::Status& status, bool connected) {
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return connected;
  if (!NobodyServed(status)) return false;
  const std::string& why = status.error_message();
  const bool refused =
      absl::StartsWith(why, "the coordinator ") && !absl::StartsWith(why, "the coordinator ends");
  return !refused && !absl::StartsWith(why, "failed to connect") &&
         !absl::StartsWith(why, "DNS resolution") && !absl::StrContains(why, "name resolution");
}

// The metadata key under which every call carries its token.
inline constexpr char kTokenKey[] = "lockstep-token";

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_GRPC_STATUS_H_
