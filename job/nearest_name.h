// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the name nearest to a mistyped one.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_NEAREST_NAME_H_
#define LOCKSTEP_JOB_NEAREST_NAME_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep::job {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
// string alignment distance). Case, '-' and '_' make no difference.
int EditDistance(absl::string_view a, absl::string_view b);

// The candidate that other tools call `name` (names_elsewhere.h), or the one nearest to it, the
// first of equals; empty when none is near enough to be meant (more than a third of the longer name
// differs).
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

// "; did you mean 'x'?" when one is near, else "; <label>: a, b, c".
std::string Suggest(absl::string_view name, const std::vector<std::string>& candidates,
                    absl::string_view label);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_NEAREST_NAME_H_
