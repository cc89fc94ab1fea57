// SPDX-License-Identifier: Apache-2.0
// Single calls to an etcd cluster: whichever endpoint answers, with statuses that mean the same as
// elsewhere here. A call that failed with Unavailable or DeadlineExceeded may have happened.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_STORE_ETCD_CLIENT_H_
#define LOCKSTEP_COORDINATOR_STORE_ETCD_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/store/etcd/options.h"
#include "proto/etcd.grpc.pb.h"

namespace lockstep::coordinator {

class EtcdClient {
 public:
  // Connects when it is first used.
  explicit EtcdClient(EtcdOptions options);

  // Each is tried once at the endpoint that answered last; when that does not answer in time the
  // next call goes to the next one. All block for at most `timeout`. Errors: Unavailable and
  // DeadlineExceeded (nobody answers, or etcd has no leader: it may have happened),
  // ResourceExhausted (etcd has no space, until its alarm is disarmed), OutOfRange (the revision is
  // compacted), PermissionDenied (user, password or certificate), NotFound (the lease),
  // InvalidArgument and others for what is not etcd.
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                absl::Duration timeout);
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    absl::Duration timeout);
  absl::Status Compact(int64_t revision, absl::Duration timeout);
  // A new lease of so many seconds; what etcd made of it.
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(int64_t seconds, absl::Duration timeout);
  // Returns what is left of the lease from now on: seconds. Errors: NotFound: it is over.
  absl::StatusOr<int64_t> KeepAlive(int64_t lease, absl::Duration timeout);
  absl::Status Revoke(int64_t lease, absl::Duration timeout);

  // All keys below `prefix` as they were at one moment, read in pages. Reads again from the start
  // when it is compacted meanwhile. Blocks for at most `timeout`.
  absl::StatusOr<std::vector<etcdserverpb::KeyValue>> ReadAll(const std::string& prefix,
                                                              absl::Duration timeout);

  bool has_several() const { return channels_.size() > 1; }
  // "host1:2379, host2:2379", for people.
  std::string Name() const;

 private:
  using Do =
      std::function<grpc::Status(const std::shared_ptr<grpc::Channel>&, grpc::ClientContext*)>;

  absl::Status Call(absl::Duration timeout, const Do& call) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CallOnce(absl::Duration timeout, const Do& call) ABSL_LOCKS_EXCLUDED(mu_);
  grpc::Status Try(absl::Duration timeout, const Do& call) ABSL_LOCKS_EXCLUDED(mu_);
  // Why the endpoint that was tried last does not answer; empty: nothing is known.
  std::string Why() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<etcdserverpb::KeyValue>> ReadOnce(const std::string& prefix,
                                                               absl::Time deadline);

  const EtcdOptions options_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  absl::Mutex mu_;
  size_t current_ ABSL_GUARDED_BY(mu_) = 0;
  size_t silent_ ABSL_GUARDED_BY(mu_) = 0;  // the one that did not answer last
  std::string why_ ABSL_GUARDED_BY(mu_);
  absl::Time explained_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::string token_ ABSL_GUARDED_BY(mu_);  // of the user; empty: not asked for yet
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_ETCD_CLIENT_H_
