// SPDX-License-Identifier: Apache-2.0
// How a rank waits for a word of a peer: it spins while every rank of the host has a CPU and the
// peer was last seen on another one, else it yields; after about a millisecond it sleeps on the
// peer's bell. Every wait ends at once on an abort or when any peer's life word says that it died.
//
// Peers cannot write into each other's memory, so a sleeper announces itself in its own header and
// the publisher, who looks at these words after each publication, wakes the sleepers of its own
// bell.
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_SHM_WAITER_H_
#define LOCKSTEP_COLLECTIVES_SHM_WAITER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/abort_flag.h"
#include "collectives/flight_recorder.h"
#include "collectives/shm/layout.h"
#include "common/life.h"
#include "common/relax.h"
#include "common/status.h"

namespace lockstep {

class ShmWaiter {
 public:
  struct Peer {
    const RankHeader* header = nullptr;  // null: not mapped yet, or this rank itself
    int index = 0;                       // among the group's members, as peers' words say it
    int rank = 0;                        // as it is called
    int64_t pid = 0;
    int life_slot = -1;
  };

  // `peers` without this rank. `life` may be null. All outlive the waiter.
  ShmWaiter(RankHeader* own, int64_t generation, std::vector<Peer> peers, const LifePage* life,
            const AbortFlag* abort, FlightRecorder* recorder, bool may_spin);

  // Adds one to this rank's bell, after a release store of whatever is published, and wakes
  // sleepers.
  void Ring();

  // Waits until ready(), which reads words of `peer` (index into peers) with acquire order.
  // `deadline` passing is DeadlineExceeded with an empty message: the caller knows what to say.
  template <typename Ready>
  absl::Status Until(size_t peer, absl::Time deadline, Ready ready) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return absl::OkStatus();
      if (i % kLook == kLook - 1 && SharesCpu(peer)) break;
      Relax();
    }
    Progress progress;
    while (true) {
      const uint32_t bell = peers_[peer].header->bell.load(std::memory_order_acquire);
      if (ready()) return absl::OkStatus();
      LS_RETURN_IF_ERROR(Pause(peer, bell, deadline, &progress));
    }
  }

  // Aborted when the generation was aborted or a peer is dead, else OK. Names the peer that died
  // first: a dead one that had itself ended because of another is a victim. Does not block.
  absl::Status CheckAlive() const;

  const std::vector<Peer>& peers() const { return peers_; }

  // Sets what else ends waits: asked each time that a wait has lasted for another millisecond or
  // so.
  void SetWatch(std::function<absl::Status()> watch) { watch_ = std::move(watch); }

 private:
  struct Progress {
    absl::Time begin = absl::InfinitePast();
    bool sleeps = false;
  };
  // Pauses between two looks at where the peer runs: about a microsecond.
  static constexpr int kLook = 32;

  // In order: what becomes of it is no fault of this generation.
  bool HasLeft(const Peer& peer) const;
  // Returns whether `peer` published last on the CPU that this thread is on.
  bool SharesCpu(size_t peer) const;
  absl::Status Pause(size_t peer, uint32_t bell, absl::Time deadline, Progress* progress);
  void Sleep(size_t peer, uint32_t bell, absl::Duration longest);

  // The peer that `dead` had found dead, and so on; `dead` itself when it had found none.
  const Peer& FirstCause(const Peer& dead) const;

  RankHeader* const own_;
  const int64_t generation_;
  const std::vector<Peer> peers_;
  const LifePage* const life_;
  const AbortFlag* const abort_;
  FlightRecorder* const recorder_;
  const int spins_;
  std::function<absl::Status()> watch_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_SHM_WAITER_H_
