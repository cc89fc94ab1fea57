// SPDX-License-Identifier: Apache-2.0
// One of several coordinators leads: the one that made the key `leader`, which has its lease. A
// thread renews the lease. Who stands by has one ready: etcd writes to its disk to grant it. The
// leader takes it for over when the time that etcd gave it is over, counted on the monotonic clock
// from before the request was sent, less a tenth for clocks that run unevenly; etcd counts from
// later on. So of two coordinators at most one takes itself for the leader; and what a leader that
// does not notice writes (it was stopped, and wakes) etcd refuses, because the key that guards each
// of its transactions has gone (etcd_store.h). Where etcd is slow the lease is a longer one than
// was wanted, of several of its answers, so that it is renewed in time.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_STORE_ETCD_ELECTION_H_
#define LOCKSTEP_COORDINATOR_STORE_ETCD_ELECTION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/thread.h"
#include "coordinator/store/etcd/client.h"
#include "coordinator/store/etcd/layout.h"

namespace lockstep::coordinator {

class Election {
 public:
  struct Callbacks {
    // Who leads has changed: its address; empty: nobody. From the election's thread.
    std::function<void(const std::string& address)> on_leader;
    // This one leads from now on. From the election's thread.
    std::function<void()> on_won;
    // It does not lead any more. Once, from the election's thread.
    std::function<void(const absl::Status& why)> on_lost;
  };

  // Takes part under the address at which clients reach this coordinator. `etcd` and `clock`
  // outlive it.
  Election(EtcdClient* etcd, Clock* clock, EtcdLayout layout, std::string address,
           absl::Duration lease, Callbacks callbacks);
  // Gives up what it has, so that another one leads soon. Blocks for a moment.
  ~Election();

  // Returns whether it leads now.
  bool Leads() const ABSL_LOCKS_EXCLUDED(mu_);
  // Until when it leads if it is not renewed; InfinitePast: it does not.
  absl::Time Until() const ABSL_LOCKS_EXCLUDED(mu_);
  // The revision at which its key was made; it leads, or has led.
  int64_t created() const ABSL_LOCKS_EXCLUDED(mu_);
  // Etcd says that another one has the key.
  void Deposed() ABSL_LOCKS_EXCLUDED(mu_);

  const EtcdLayout& layout() const { return layout_; }
  EtcdClient* etcd() const { return etcd_; }
  Clock* clock() const { return clock_; }

 private:
  void Run();
  // What etcd answers to `call`, which is given its time: twice what the last one took, within
  // bounds. Who gives a slow etcd up for dead asks it the same again, and is never answered.
  template <typename Call>
  auto Ask(absl::Duration most, const Call& call);
  bool Wait(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);  // false: it is to end
  absl::Duration NeededLease() const;                       // in whole seconds
  bool Look();                                              // whether nobody leads
  absl::Status HaveLease();                                 // that is not over soon
  absl::Status Stand();                                     // for election; OK: won
  absl::Status Renew();
  void Lose(const std::string& why);
  // Warns of a trouble that is another one than the last; empty: there is none.
  void WarnOnChange(const std::string& trouble);
  void TellLeader(const std::string& address);

  EtcdClient* const etcd_;
  Clock* const clock_;
  const EtcdLayout layout_;
  const std::string address_;
  const absl::Duration lease_time_;
  const Callbacks callbacks_;

  mutable absl::Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool deposed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int64_t created_ ABSL_GUARDED_BY(mu_) = 0;

  // The thread's own.
  int64_t lease_ = 0;
  absl::Duration asked_, granted_;  // of the lease
  absl::Time renew_at_;             // of a lease without the key
  std::string known_leader_;
  bool told_leader_ = false;
  std::string said_;
  absl::Duration patience_;  // of the next call
  // What the last two answers took: a single one may have waited for a connection.
  std::pair<absl::Duration, absl::Duration> answers_took_;
  Thread thread_;  // last: it runs on the rest
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_ETCD_ELECTION_H_
