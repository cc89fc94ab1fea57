// SPDX-License-Identifier: Apache-2.0
// What the control plane decides and says as lines of text for scenarios.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_TESTS_SCENARIOS_EFFECTS_TEXT_H_
#define LOCKSTEP_TESTS_SCENARIOS_EFFECTS_TEXT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"

namespace lockstep::coordinator {

// Who is at the other end of a session.
using Names = std::map<SessionId, std::string>;

// What a coordinator says.
std::string ToText(const AgentCommand& command);
std::string ToText(const WorkerCommand& command);
std::string ToText(const JobEvent& event);
// What a peer says.
std::string ToText(const AgentMessage& message);
std::string ToText(const WorkerMessage& message);

// "cluster/3": whose command it is and of which life; "-": it does not say.
template <typename Spoken>
std::string SpeakerText(const Spoken& command) {
  return command.cluster_id().empty() ? "-"
                                      : absl::StrCat(command.cluster_id(), "/", command.epoch());
}

// Returns what was told to agents, workers and followers, and which rows were written, in this
// order.
std::vector<std::string> ToText(const Effects& effects, const Names& names);

// One line for each job and node.
std::vector<std::string> Overview(const State& state, absl::Time now);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_EFFECTS_TEXT_H_
