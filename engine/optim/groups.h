// SPDX-License-Identifier: Apache-2.0
// Parameter groups: what the optimizer's settings are for each parameter. Thread-safety: pure
// functions.
#ifndef LOCKSTEP_ENGINE_OPTIM_GROUPS_H_
#define LOCKSTEP_ENGINE_OPTIM_GROUPS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/optim/optimizer.h"

namespace lockstep::engine {

// Returns whether `name` is what `glob` says; '*' stands for any characters, '?' for one.
bool Matches(const std::string& glob, const std::string& name);

// The settings of one parameter.
struct ParameterSettings {
  double learning_rate = 0;  // before the schedule
  double weight_decay = 0;
};

// In the order of `parameters`. The first group that matches decides; a weight decay that it does
// not name is the optimizer's, or 0 where spec.spare_norms_and_biases says so. Errors:
// InvalidArgument, for a group that matches nothing too.
absl::StatusOr<std::vector<ParameterSettings>> ResolveGroups(
    const TrainSpec& spec, const Optimizer& optimizer,
    const std::vector<ParameterSpec>& parameters);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPTIM_GROUPS_H_
