// SPDX-License-Identifier: Apache-2.0
// The few places for transfers that last and hold threads. Nobody waits for one: who finds all of
// them taken is turned away, and comes again. Each transfer may have its place for its share of
// time; one that has had it longer gives way when another asks.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_PLACES_H_
#define LOCKSTEP_COORDINATOR_SERVICE_PLACES_H_

#include <cstddef>
#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace lockstep::coordinator {

// So many, for transfers of one kind.
class Places {
 public:
  class Place;

  // `clock` outlives the places, and they outlive each Place.
  Places(size_t most, absl::Duration share, Clock* clock)
      : most_(most), share_(share), clock_(clock) {}

  // A place, until it is destroyed. Null: all are taken. The oldest of those that have had their
  // share is then to give way, unless one is about to.
  std::unique_ptr<Place> Take();

 private:
  struct Taken {
    absl::Time since;
    bool gives_way = false;
  };

  const size_t most_;
  const absl::Duration share_;
  Clock* const clock_;
  absl::Mutex mu_;
  std::list<Taken> taken_ ABSL_GUARDED_BY(mu_);  // the oldest first
};

// One that is taken.
class Places::Place {
 public:
  // Of `places`, which Take makes.
  Place(Places* places, std::list<Taken>::iterator taken) : places_(places), taken_(taken) {}
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // OK: the transfer may go on. Asked between two pieces. Errors: ResourceExhausted when it gives
  // way to another.
  absl::Status status() const;

 private:
  Places* const places_;
  const std::list<Taken>::iterator taken_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_PLACES_H_
