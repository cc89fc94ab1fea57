// SPDX-License-Identifier: Apache-2.0
// What scripts of PyTorch, torchrun, transformers and DeepSpeed call that for which a job file has
// another name. Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_NAMES_ELSEWHERE_H_
#define LOCKSTEP_JOB_NAMES_ELSEWHERE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep::job {

// Returns the keys of job files that may be meant by `name`, the likeliest first; empty: it is none
// of those names. Case, '-' and '_' make no difference.
std::vector<std::string> NamesHere(absl::string_view name);

// Returns in which way the key `here` means something else than `name` does elsewhere, a sentence
// without its end; empty: in none, or `name` is no other name of it.
std::string DifferenceHere(absl::string_view name, absl::string_view here);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_NAMES_ELSEWHERE_H_
