// SPDX-License-Identifier: Apache-2.0
// Who this node is: an id that is made when an agent first starts with a state folder and is kept
// there, so that a coordinator knows the node again whatever happens to the agent's process. One
// agent at a time holds the folder.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_AGENT_IDENTITY_H_
#define LOCKSTEP_LAUNCHER_AGENT_IDENTITY_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/fd.h"

namespace lockstep::launcher {

struct NodeIdentity {
  std::string node_id;
  std::string file;  // where it is kept
  UniqueFd lock;     // held while it is open: the folder is this process's
};

// The folder of an agent on `host` when the user names none: `agent-<host>` (home folders may be
// shared by hosts) in $XDG_STATE_HOME/lockstep, /var/lib/lockstep for root, or
// ~/.local/state/lockstep. `env` gives a variable's value, or "". Errors: FailedPrecondition
// without any of these.
absl::StatusOr<std::string> DefaultStateFolder(const std::string& host, bool root,
                                               const std::function<std::string(const char*)>& env);

// Takes `folder`, making it if need be, and reads its id, or makes one of `host` and chance. Blocks
// on the file system. Errors: FailedPrecondition when another live agent holds the folder (with its
// process id and how to run a second agent), when the folder cannot be written or the id in it is
// damaged.
absl::StatusOr<NodeIdentity> OpenNodeIdentity(const std::string& folder, const std::string& host);

// Returns whether `text` is fit to be a part of paths, tables and messages: 1 to 255 of
// [A-Za-z0-9._-], and neither "." nor "..".
bool IsPlainName(const std::string& text);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_IDENTITY_H_
