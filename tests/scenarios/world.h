// SPDX-License-Identifier: Apache-2.0
// What a script drives. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SCENARIOS_WORLD_H_
#define LOCKSTEP_TESTS_SCENARIOS_WORLD_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/scenarios/script.h"

namespace lockstep::coordinator {

class World {
 public:
  virtual ~World() = default;
  // Carries the command out and returns what came of it, at least one line.
  virtual std::vector<std::string> Do(const Command& command) = 0;
};

// The world of a script that begins so: with `machines` all machines of the control plane
// (machine_world.h), else the coordinator's core alone (core_world.h).
std::unique_ptr<World> MakeWorld(const Command& first);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_WORLD_H_
