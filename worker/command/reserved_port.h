// SPDX-License-Identifier: Apache-2.0
// A TCP port for a command's rank 0, kept until just before the command begins. It is taken outside
// the range of which the kernel gives ports to connections, so that none of them gets it while the
// command has not bound it yet; and a name in the abstract namespace keeps other jobs of this host
// away from it for as long as the command runs.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_WORKER_COMMAND_RESERVED_PORT_H_
#define LOCKSTEP_WORKER_COMMAND_RESERVED_PORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/fd.h"

namespace lockstep::worker {

class ReservedPort {
 public:
  // Errors: ResourceExhausted when no port is free.
  static absl::StatusOr<ReservedPort> Take();

  int port() const { return port_; }
  // Lets the command bind it. Others who ask Take still do not get it, until this object ends.
  void Release();

 private:
  int port_ = 0;
  UniqueFd name_;
  UniqueFd v4_;
  UniqueFd v6_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMAND_RESERVED_PORT_H_
