// SPDX-License-Identifier: Apache-2.0
// The data plane between the workers of one host: each owns an arena that its peers read in place.
// A dead peer's memory stays mapped until the communicators that used it are gone and a generation
// begins in which it is no member, or until ShmCommunicator::ReleaseDead.
// Thread-safety: as Transport.
#ifndef LOCKSTEP_COLLECTIVES_SHM_SHM_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_SHM_SHM_TRANSPORT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/abort_flag.h"
#include "collectives/communicator.h"
#include "collectives/flight_recorder.h"
#include "collectives/shm/arena.h"
#include "collectives/shm/handoff.h"
#include "common/life.h"

namespace lockstep {

class ShmTransport : public Transport {
 public:
  struct Options {
    // What Allocate can give out in all; every piece is rounded up to 64 bytes.
    size_t arena_bytes = 0;
    // What ReservePages can give out in all; every piece is rounded up to whole pages.
    size_t reserved_bytes = 0;
    // Where the peers' life words are, and by whose lock the workers of the job on this host take
    // memory one at a time; null: deaths show as deadlines only. Outlives the transport.
    const LifePage* life = nullptr;
    // Ranks that share this host's CPUs, when they are more than the members of a generation:
    // waiting spins only when each has a CPU.
    int local_ranks = 0;
    size_t flight_records = 2048;
    // How long memory that is short is waited for: others may be about to give theirs back.
    absl::Duration memory_patience;
  };

  // Reserves the arena and serves it to peers. Errors: ResourceExhausted, Internal.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Create(const Options& options);
  // REQUIRES: its communicators are gone.
  ~ShmTransport() override;

  absl::StatusOr<void*> Allocate(size_t bytes, const std::string& what) override;
  VectorMemory& vectors() override { return vectors_; }
  absl::StatusOr<void*> ReservePages(size_t bytes, const std::string& what) override;
  absl::Status CommitPages(void* data, size_t bytes, const std::string& what) override;
  void ReleasePages(void* data, size_t bytes) override { arena_->ReleasePages(data, bytes); }
  // Members may be some of the generation's, those of this host: what is made of them counts them
  // by their places in the list and names them by their ranks.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupSpec& spec,
                                                        absl::Time deadline) override;
  void AbortConnect(int64_t generation, const std::string& reason) override;
  std::string address() const override { return server_->address(); }
  std::string key() const override { return server_->key(); }
  const FlightRecorder& flight_recorder() const override { return recorder_; }
  // Returns whether [data, data + bytes) lies in what Allocate gives.
  bool Holds(const void* data, size_t bytes) const {
    return arena_->OffsetOf(data, bytes) != CallSlot::kForeign;
  }

 private:
  explicit ShmTransport(const Options& options)
      : options_(options), recorder_(options.flight_records) {}

  static absl::Status CheckMembers(const GroupSpec& spec);
  // Maps the arena of `member`, or finds it mapped.
  absl::StatusOr<std::shared_ptr<PeerArena>> Reach(const GroupMember& member,
                                                   const AbortFlag& abort, absl::Time deadline);
  // The flag of the attempt at `generation`, set already when the generation was aborted before.
  std::shared_ptr<AbortFlag> BeginConnect(int64_t generation);
  absl::StatusOr<std::unique_ptr<Communicator>> ConnectRecorded(const GroupSpec& spec,
                                                                absl::Time deadline);

  const Options options_;
  std::unique_ptr<OwnArena> arena_;
  std::unique_ptr<ArenaServer> server_;
  FlightRecorder recorder_;
  HostVectors vectors_{this};
  // By address. Used by the main thread only.
  std::map<std::string, std::shared_ptr<PeerArena>> peers_;

  absl::Mutex mu_;
  int64_t aborted_generation_ ABSL_GUARDED_BY(mu_) = -1;
  std::string abort_reason_ ABSL_GUARDED_BY(mu_);
  int64_t connecting_generation_ ABSL_GUARDED_BY(mu_) = -1;
  std::shared_ptr<AbortFlag> connecting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_SHM_SHM_TRANSPORT_H_
