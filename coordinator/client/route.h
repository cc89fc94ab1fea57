// SPDX-License-Identifier: Apache-2.0
// The way to the coordinator that leads, when several addresses are known ("a:7070,b:7070"). Calls
// go to the one that is taken for the leader; one that does not answer is left for the next, and
// one that stands by names the leader. With one address alone nothing is different.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_CLIENT_ROUTE_H_
#define LOCKSTEP_COORDINATOR_CLIENT_ROUTE_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/client/client.h"

namespace lockstep::coordinator {

class Route {
 public:
  struct Way {
    int64_t number = 0;     // ways so far
    ClientOptions options;  // with its one address
    std::shared_ptr<grpc::Channel> channel;
  };

  // Connects nowhere yet. REQUIRES: as MakeChannel.
  explicit Route(const ClientOptions& options);

  // Returns whether there are several addresses. Then a call on one of them does not wait for a
  // connection.
  bool several() const { return addresses_.size() > 1; }
  // To whom a call goes now.
  Way Now() ABSL_LOCKS_EXCLUDED(mu_);
  // A call on `way` ended with `status`: if nobody that leads answered there, later calls go to the
  // leader that it named, or to the next address.
  void Ended(const Way& way, const grpc::Status& status, const grpc::ClientContext& context)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Later calls make connections of their own; those that are up go with their calls.
  void Forget() ABSL_LOCKS_EXCLUDED(mu_);

  // A channel to whoever leads: asks for at most `timeout` when there are several addresses, and
  // takes one of them when nobody says that it leads. With one address it does not block.
  std::shared_ptr<grpc::Channel> ToLeader(absl::Duration timeout = absl::Seconds(5));

 private:
  void LeadTo(absl::string_view leader) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ClientOptions options_;
  const std::vector<std::string> addresses_;
  absl::Mutex mu_;
  int64_t number_ ABSL_GUARDED_BY(mu_) = 0;
  size_t place_ ABSL_GUARDED_BY(mu_) = 0;     // in addresses_
  std::string current_ ABSL_GUARDED_BY(mu_);  // may be one that was named
  std::string token_ ABSL_GUARDED_BY(mu_);    // of the channels
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CLIENT_ROUTE_H_
