// SPDX-License-Identifier: Apache-2.0
// --set path=value: changes of the YAML tree before it is read.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_OVERRIDES_H_
#define LOCKSTEP_JOB_OVERRIDES_H_

#include <string>
#include <vector>

#include "job/reporter.h"
#include "job/yaml_tree.h"

namespace lockstep::job {

// Applies `sets` in order to the map `root`. A path is made of the names of the file
// ("train.epochs", "env.HOME"); lists are set whole; an empty value or null removes the key. One of
// several alternatives (train.steps for train.epochs, another kind of data) replaces the one in the
// file.
void ApplyOverrides(const std::vector<std::string>& sets, YamlNode* root, Reporter* reporter);

// Rewrites the short forms of `root`, "run: command" with "setup:" beside it, as
// "run: {command: ..., setup: ...}".
void ExpandRun(YamlNode* root);
// Reports a file that has `setup` beside `run` and in it, of which one would be lost.
void CheckSetup(const YamlNode& root, Reporter* reporter);
// `nproc_per_node: gpu`, cpu or auto, is `nproc_by: gpu`. Of both, the one that a flag sets stays;
// reports both of one source. `nproc_by` beside a number is another thing (proto/job.proto), unless
// a flag sets the number alone.
void ExpandProcs(YamlNode* root, Reporter* reporter);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_OVERRIDES_H_
