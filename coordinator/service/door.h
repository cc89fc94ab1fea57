// SPDX-License-Identifier: Apache-2.0
// The shell around Admission: asks the kernel who is at the other end of a new connection, and
// which connections have ended. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_DOOR_H_
#define LOCKSTEP_COORDINATOR_SERVICE_DOOR_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/service/admission.h"

namespace lockstep::coordinator {

class Door {
 public:
  // As Admission's. `clock` outlives the door.
  Door(std::vector<std::string> secrets, Admission::Limits limits, bool local_users, Clock* clock);

  // Returns who knocks, if the new connection `fd` may stay. Whoever closes it then need not say
  // so.
  std::optional<Admission::Peer> LetIn(int fd) ABSL_LOCKS_EXCLUDED(mu_);
  // From now on `on_call` is told, on the caller's thread, which connection has made its first
  // call. Null: nobody is.
  void TellCalls(std::function<void(uint64_t id)> on_call) ABSL_LOCKS_EXCLUDED(mu_);
  // As Admission's; `peer` as gRPC names it.
  bool IsClusterToken(absl::string_view token) ABSL_LOCKS_EXCLUDED(mu_);
  void HasCalled(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void HasProven(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void ForgetEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  absl::Mutex mu_;
  Admission admission_ ABSL_GUARDED_BY(mu_);
  std::function<void(uint64_t)> on_call_ ABSL_GUARDED_BY(mu_);
  // Those that were let in, known by their sockets' inodes, with the descriptor, which is gRPC's.
  std::map<ino_t, int> open_ ABSL_GUARDED_BY(mu_);
  absl::Time looked_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // which have ended
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_DOOR_H_
