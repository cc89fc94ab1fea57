// SPDX-License-Identifier: Apache-2.0
// The shell around Turnstile: connections that were accepted and wait until their handshake is
// made. One that says nothing, or whose peer has gone, costs a descriptor and no handshake.
// Thread-safety: thread-compatible, but for Through.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_ANTEROOM_H_
#define LOCKSTEP_COORDINATOR_SERVICE_ANTEROOM_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/fd.h"
#include "coordinator/service/turnstile.h"

namespace lockstep::coordinator {

class Anteroom {
 public:
  // Who says nothing for so long is sent away.
  static constexpr absl::Duration kSilence = absl::Seconds(10);

  // `clock` outlives it. Errors: as of the system's calls.
  static absl::StatusOr<std::unique_ptr<Anteroom>> Create(Clock* clock);

  // Becomes readable when Turns may have something to do.
  int fd() const { return events_.get(); }
  // When Turns has something to do though fd() is not readable.
  absl::Time wake_at() const;

  // A connection has come; `id` is its socket's inode.
  void Add(UniqueFd connection, uint64_t id, const std::string& host);
  // Returns those whose turn it is. Who closes them need not say so.
  std::vector<UniqueFd> Turns();
  // The connection has made its first call. On any thread.
  void Through(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes those that wait.
  void Clear();

 private:
  struct Guest {
    UniqueFd fd;
    std::string host;
    absl::Time came;
    bool spoke = false;
  };

  explicit Anteroom(Clock* clock) : clock_(clock) {}
  bool Watch(int fd, uint64_t id, uint32_t events, int how);
  void Look(absl::Time now);
  void Hear(uint64_t id, uint32_t events, absl::Time now);
  void TakeThrough(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetClosed(absl::Time now);
  void SendSilentAway(absl::Time now);

  Clock* const clock_;
  UniqueFd events_;  // epoll's
  UniqueFd called_;  // readable: through_ is not empty
  Turnstile turnstile_;
  std::map<uint64_t, Guest> guests_;                  // those that wait
  std::deque<std::pair<absl::Time, uint64_t>> came_;  // in order; some are no guests any more
  // Those that have made no call yet, with descriptors that are gRPC's by now and may be closed.
  std::map<uint64_t, int> inside_;
  size_t forget_from_ = Turnstile::kMost;        // of so many, those that are closed
  absl::Time looked_at_ = absl::InfinitePast();  // which are closed
  absl::Mutex mu_;
  std::vector<uint64_t> through_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_ANTEROOM_H_
