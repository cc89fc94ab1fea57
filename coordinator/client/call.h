// SPDX-License-Identifier: Apache-2.0
// One call of a client, made again until a coordinator that leads has answered it.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_CALL_H_
#define LOCKSTEP_COORDINATOR_CLIENT_CALL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/client/client.h"
#include "coordinator/client/route.h"

namespace lockstep::coordinator {

struct CallRules {
  // It would do its work a second time: what may have arrived is not sent again.
  bool once = false;
  // Whether it was told to end, with Cancelled. May be empty.
  std::function<bool()> stopped = {};
};

// One try, over a channel and with all that a call shows.
using Try = absl::FunctionRef<grpc::Status(const std::shared_ptr<grpc::Channel>& channel,
                                           grpc::ClientContext* context)>;

// A coordinator that is just starting may not listen yet, so the call waits for the connection; one
// that ends meanwhile may be started again, so it is tried again: what was carried out before it
// broke off is done, and no refusal (common/already_so.h). Over TCP the first try does not wait:
// what TLS has against the connection is said at once. Blocks for at most `timeout`; where there
// are several coordinators for 10 s at least, until one of them leads. Errors: Unavailable (nobody
// answers, or refuses to serve), FailedPrecondition and Unauthenticated (TLS does not come about,
// with what to do), Cancelled, and those of the call. They are marked (IsUnanswered) when an
// earlier try may have been carried out and the last one does not say that it was not.
absl::Status CallUntilAnswered(const ClientOptions& options, Route& route, absl::Duration timeout,
                               const CallRules& rules, Try call);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_CALL_H_
