// SPDX-License-Identifier: Apache-2.0
// What of a wait counts: not the time in which this coordinator did not run, nor that which all may
// take to come back to it. For waits whose beginnings stay as they are; what else began is moved on
// by a pause (health.cc). Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_PAUSES_H_
#define LOCKSTEP_COORDINATOR_CORE_PAUSES_H_

#include <deque>

#include "absl/time/time.h"

namespace lockstep::coordinator {

class Pauses {
 public:
  // Waits that began before begin then.
  void BeginAt(absl::Time then) { began_ = then; }
  // The newest `length` of time counts for nobody; pauses may overlap. REQUIRES: `now` is no
  // earlier than before.
  void Add(absl::Duration length, absl::Time now);
  // When `wait` will have passed since `began`, without a further pause; of waits of at most
  // kLongestWait.
  absl::Time End(absl::Time began, absl::Duration wait) const;

  static constexpr absl::Duration kLongestWait = absl::Minutes(1);

 private:
  struct Pause {
    absl::Time end;
    absl::Duration length;
  };
  absl::Time began_ = absl::InfinitePast();
  std::deque<Pause>
      pauses_;            // that a wait may still be about, none touching another, the oldest first
  absl::Duration total_;  // of them
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_PAUSES_H_
