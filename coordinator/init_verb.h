// SPDX-License-Identifier: Apache-2.0
// `coordinator init`: makes a cluster's certificates and its token, or renews the former.
// Thread-safety: called by main.
#ifndef LOCKSTEP_COORDINATOR_INIT_VERB_H_
#define LOCKSTEP_COORDINATOR_INIT_VERB_H_

#include <string>
#include <vector>

namespace lockstep::coordinator {

// `arguments`: those after "init". What it made goes to stderr, the command that adds a node to
// stdout. Returns the exit code: 0, 1 (a file cannot be made or read), 2 (usage).
int RunInit(const std::vector<std::string>& arguments);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_INIT_VERB_H_
