// SPDX-License-Identifier: Apache-2.0
// The certificate that a token carries is renewed while it is used: a session, and who follows a
// job, asks the coordinator, on the connection that it has, whether what it has is on its way out
// (Access/RenewToken), soon after each connection and then every ten minutes.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_RENEWAL_H_
#define LOCKSTEP_COORDINATOR_CLIENT_RENEWAL_H_

#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "coordinator/client/client.h"
#include "coordinator/client/route.h"
#include "proto/access.pb.h"

namespace lockstep::coordinator {

// Returns what is asked with the token of `options`, and the token that was answered; none: that of
// now will do. Errors: FailedPrecondition, DataLoss (it is another token).
absl::StatusOr<RenewTokenRequest> RenewalOf(const ClientOptions& options);
absl::StatusOr<std::optional<std::string>> Renewed(const ClientOptions& options,
                                                   const RenewTokenResponse& response);

class Renewal {
 public:
  // `options` have the cell for the renewed token, from which `route` takes it. `on_renewed` is
  // told of it, on the renewal's thread; may be empty.
  Renewal(const ClientOptions& options, std::shared_ptr<Route> route,
          std::function<void(const std::string& token)> on_renewed);
  ~Renewal();  // cuts a call short, and joins

  // There is a connection: it is asked soon.
  void Connected() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run();
  // When to ask again.
  absl::Duration Ask() ABSL_LOCKS_EXCLUDED(mu_);
  void Warn(absl::Time now);

  const ClientOptions options_;
  const std::shared_ptr<Route> route_;
  const std::function<void(const std::string&)> on_renewed_;
  absl::Time warned_ = absl::InfinitePast();  // the thread's own
  absl::Mutex mu_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time due_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // that is under way
  Thread thread_;                                             // last: starts when the rest is there
};

// The same options with a cell for the renewed token.
ClientOptions WithCell(ClientOptions options);
// Returns whether a token's certificate may have to be renewed at this address: TLS is spoken
// there.
bool IsRenewable(const ClientOptions& options);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_RENEWAL_H_
