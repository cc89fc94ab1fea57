// SPDX-License-Identifier: Apache-2.0
#include "engine/optim/groups.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::engine {

bool Matches(const std::string& glob, const std::string& name) {
  // The last '*' is taken to stand for ever more characters until the rest fits.
  size_t g = 0, n = 0, star = std::string::npos, resume = 0;
  while (n < name.size()) {
    if (g < glob.size() && (glob[g] == '?' || (glob[g] == name[n] && glob[g] != '*'))) {
      ++g;
      ++n;
    } else if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = n;
    } else if (star != std::string::npos) {
      g = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == std::string::npos;
}

namespace {

// `what`: "the group", of which `glob` is. Errors: InvalidArgument when no parameter matches.
absl::Status CheckMatch(const char* what, const std::string& glob,
                        const std::vector<ParameterSpec>& parameters) {
  const bool used =
      std::any_of(parameters.begin(), parameters.end(),
                  [&](const ParameterSpec& parameter) { return Matches(glob, parameter.name); });
  if (used) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " '", glob, "' matches no parameter; the first is '",
                   parameters.front().name, "', the last '", parameters.back().name, "'"));
}

}  // namespace

absl::StatusOr<std::vector<ParameterSettings>> ResolveGroups(
    const TrainSpec& spec, const Optimizer& optimizer,
    const std::vector<ParameterSpec>& parameters) {
  for (const ParameterGroup& group : spec.groups) {
    LS_RETURN_IF_ERROR(CheckSetting("groups.lr_scale", group.lr_scale, false));
    LS_RETURN_IF_ERROR(CheckSetting("groups.weight_decay", group.weight_decay.value_or(0), false));
    LS_RETURN_IF_ERROR(CheckMatch("the group", group.match, parameters));
  }
  if (const auto* muon = std::get_if<MuonSpec>(&spec.optimizer)) {
    for (const std::string& glob : muon->adamw_match) {
      LS_RETURN_IF_ERROR(CheckMatch("muon.exclude", glob, parameters));
    }
  }
  std::vector<ParameterSettings> settings;
  for (const ParameterSpec& parameter : parameters) {
    ParameterSettings own;
    own.learning_rate = optimizer.learning_rate(parameter);
    const bool spared = spec.spare_norms_and_biases && !parameter.decay;
    own.weight_decay = spared ? 0 : optimizer.weight_decay(parameter);
    const auto group =
        std::find_if(spec.groups.begin(), spec.groups.end(),
                     [&](const ParameterGroup& g) { return Matches(g.match, parameter.name); });
    if (group != spec.groups.end()) {
      own.learning_rate *= group->lr_scale;
      own.weight_decay = group->weight_decay.value_or(own.weight_decay);
    }
    settings.push_back(own);
  }
  return settings;
}

}  // namespace lockstep::engine
