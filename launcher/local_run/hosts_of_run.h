// SPDX-License-Identifier: Apache-2.0
// What the hosts of a run without a daemon have in common: the one with node rank 0, which has the
// coordinator (run_here.h), and its guests (run_as_guest.h).
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_HOSTS_OF_RUN_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_HOSTS_OF_RUN_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/client/client.h"
#include "launcher/cli/arguments.h"
#include "proto/job.pb.h"

namespace lockstep::launcher {

// The token that all hosts of the run show: of --token-file or LOCKSTEP_TOKEN. Errors:
// FailedPrecondition when there is none, or as ReadToken.
absl::StatusOr<std::string> TokenOfRun(const CoordinatorArgs& args);

// The worker slots that one host offers: all processes that the job may ever have, or, over several
// hosts, the most of any host of it, with the spares.
int SlotsOfHost(const JobSpec& spec, bool over_hosts);

// The job has ended: blocks until the other hosts have seen that and left, for some seconds at
// most.
void AwaitGuestsEnd(coordinator::Client* client);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_HOSTS_OF_RUN_H_
