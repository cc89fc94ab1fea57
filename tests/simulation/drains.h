// SPDX-License-Identifier: Apache-2.0
// An administrator who drains nodes and gives them back, at any time of a seed's history: what
// moves between steps meets whatever else goes wrong. In the end all nodes are given back. It draws
// its own numbers, so that a seed's faults are the same without it.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_DRAINS_H_
#define LOCKSTEP_TESTS_SIMULATION_DRAINS_H_

#include <string>

#include "absl/time/time.h"
#include "coordinator/core/event.h"
#include "tests/machines/timeline.h"

namespace lockstep::simulation {

class World;

class Drains {
 public:
  explicit Drains(World* world);

  // Until then; afterwards it gives all back, as often as it takes.
  void Begin(absl::Time until);

 private:
  void Next();
  void GiveBack();

  World* const world_;
  Random random_;
  absl::Time until_;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_DRAINS_H_
