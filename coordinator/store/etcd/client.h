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
#include "common/cond_var.h"
#include "common/thread.h"
#include "coordinator/store/etcd/options.h"
#include "proto/etcd.grpc.pb.h"

namespace lockstep::coordinator {

class EtcdClient {
 public:
  // Connects when it is first used.
  explicit EtcdClient(EtcdOptions options);
  // Waits for an explanation that is under way (EtcdOptions::explain).
  ~EtcdClient();

  // Each is tried once at the endpoint that answered last; when that does not answer in time the
  // next call goes to the next one. All block for at most `timeout`. Errors: Unavailable and
  // DeadlineExceeded (nobody answers, etcd has no leader or loses it, or a proxy fails: it may have
  // happened; when no endpoint has answered, with why as soon as that is known),
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
  // when it is compacted meanwhile, a few times. Blocks while pages come, and for at most
  // `patience` for each. Errors: as above, after so long without a page.
  absl::StatusOr<std::vector<etcdserverpb::KeyValue>> ReadAll(const std::string& prefix,
                                                              absl::Duration patience);

  bool has_several() const { return channels_.size() > 1; }
  // "host1:2379, host2:2379", for people.
  std::string Name() const;

 private:
  using Do =
      std::function<grpc::Status(const std::shared_ptr<grpc::Channel>&, grpc::ClientContext*)>;

  absl::Status Call(absl::Duration timeout, const Do& call) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CallOnce(absl::Duration timeout, const Do& call) ABSL_LOCKS_EXCLUDED(mu_);
  grpc::Status Try(absl::Duration timeout, const Do& call) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns why none of the endpoints answers; empty: one has, or nothing is known yet. Does not
  // block.
  std::string Why() ABSL_LOCKS_EXCLUDED(mu_);
  // The thread that finds it out.
  void Explain() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<etcdserverpb::KeyValue>> ReadOnce(const std::string& prefix,
                                                               absl::Duration patience);
  // Asks for less of it each time that it does not come.
  absl::StatusOr<etcdserverpb::RangeResponse> ReadPage(etcdserverpb::RangeRequest* request,
                                                       absl::Duration patience);

  const EtcdOptions options_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  absl::Mutex mu_;
  size_t current_ ABSL_GUARDED_BY(mu_) = 0;
  size_t silent_ ABSL_GUARDED_BY(mu_) = 0;    // the one that did not answer last
  size_t silences_ ABSL_GUARDED_BY(mu_) = 0;  // calls since one was answered
  std::string why_ ABSL_GUARDED_BY(mu_);
  absl::Time explained_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool explain_ ABSL_GUARDED_BY(mu_) = false;  // `silent_` is to be explained
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  CondVar changed_;
  std::string token_ ABSL_GUARDED_BY(mu_);  // of the user; empty: not asked for yet
  Thread explainer_;                        // last: uses the rest
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_ETCD_CLIENT_H_
