// SPDX-License-Identifier: Apache-2.0
// Effects of the coordinator's core as lines of text for scenarios.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_TESTS_SCENARIOS_EFFECTS_TEXT_H_
#define LOCKSTEP_TESTS_SCENARIOS_EFFECTS_TEXT_H_

#include <map>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"

namespace lockstep::coordinator {

// Who is at the other end of a session.
using Names = std::map<SessionId, std::string>;

// Returns what was told to agents, workers and followers, and which rows were written, in this
// order.
std::vector<std::string> ToText(const Effects& effects, const Names& names);

// One line for each job and node.
std::vector<std::string> Overview(const State& state, absl::Time now);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_EFFECTS_TEXT_H_
