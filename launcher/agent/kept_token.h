// SPDX-License-Identifier: Apache-2.0
// A node's token keeps the certificate that it was given last over the agent's lives: the file that
// the administrator copied may be one that the agent cannot write, and stays as it is.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_KEPT_TOKEN_H_
#define LOCKSTEP_LAUNCHER_AGENT_KEPT_TOKEN_H_

#include <string>

#include "absl/status/status.h"

namespace lockstep::launcher {

// The token that an agent with this state folder shows: `token`, or the same with a newer
// certificate that is kept there.
std::string NewerToken(const std::string& state_folder, const std::string& token);

// Keeps a renewed token, in a file that is its owner's alone. Errors: as open(2), write(2).
absl::Status KeepToken(const std::string& state_folder, const std::string& token);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_KEPT_TOKEN_H_
