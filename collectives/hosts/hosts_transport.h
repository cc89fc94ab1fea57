// SPDX-License-Identifier: Apache-2.0
// The data plane of a job on several hosts: the shared memory of this one, and a TCP listener for
// the ranks of others. A generation whose members are all on this host is one of shared memory
// alone. Thread-safety: as Transport.
#ifndef LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/hosts/hosts_communicator.h"
#include "collectives/shm/shm_transport.h"
#include "collectives/tcp/departure.h"
#include "collectives/tcp/listener.h"

namespace lockstep {

class HostsTransport : public Transport {
 public:
  struct Options {
    ShmTransport::Options shm;
    // Local addresses to listen at, numeric, without ports; empty: all of this host.
    std::vector<std::string> listen;
    // How long a peer's kernel may leave data unacknowledged before it counts as unreachable.
    absl::Duration silence = absl::Seconds(10);
    // What is begun of a TreeReduce (BeginPart) moves while this rank computes, on a thread of its
    // own. Without, all of it moves in TreeReduce. Each rank for itself: others notice nothing.
    bool overlap = true;
  };

  // Errors: ResourceExhausted, Internal; those of Listener::Open.
  static absl::StatusOr<std::unique_ptr<HostsTransport>> Create(Options options);
  // Blocks until the peers that were left while they were joined have heard it, for a second at
  // most. REQUIRES: its communicators are gone.
  ~HostsTransport() override = default;

  absl::StatusOr<void*> Allocate(size_t bytes, const std::string& what) override {
    return shm_->Allocate(bytes, what);
  }
  absl::StatusOr<void*> ReservePages(size_t bytes, const std::string& what) override {
    return shm_->ReservePages(bytes, what);
  }
  absl::Status CommitPages(void* data, size_t bytes, const std::string& what) override {
    return shm_->CommitPages(data, bytes, what);
  }
  void ReleasePages(void* data, size_t bytes) override { shm_->ReleasePages(data, bytes); }
  VectorMemory& vectors() override { return shm_->vectors(); }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupSpec& spec,
                                                        absl::Time deadline) override;
  void AbortConnect(int64_t generation, const std::string& reason) override;
  std::string address() const override { return shm_->address(); }
  std::string key() const override { return shm_->key(); }
  int tcp_port() const override { return listener_.port(); }
  bool spans_hosts() const override { return true; }
  const FlightRecorder& flight_recorder() const override { return shm_->flight_recorder(); }

 private:
  HostsTransport(Options options, std::unique_ptr<ShmTransport> shm, Listener listener);
  absl::StatusOr<std::unique_ptr<Communicator>> ConnectHosts(const GroupSpec& spec,
                                                             HostsGroup group, absl::Time deadline);
  // Finds the areas of the ranks of this host, and connects with those of others. An abort comes
  // from connecting_.
  absl::StatusOr<std::unique_ptr<Mesh>> JoinHosts(const GroupSpec& spec, HostsGroup* group,
                                                  absl::Time deadline);

  const Options options_;
  const std::unique_ptr<ShmTransport> shm_;
  const Listener listener_;
  char* area_ = nullptr;
  // From the newest generation that did not come about; null: from none.
  std::unique_ptr<Departure> departure_;

  absl::Mutex mu_;
  // Where an abort of a generation that is being connected goes to.
  Communicator* connecting_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t aborted_generation_ ABSL_GUARDED_BY(mu_) = -1;
  std::string abort_reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_TRANSPORT_H_
