// SPDX-License-Identifier: Apache-2.0
// What the hosts of a run without a daemon have in common: the one with node rank 0, which has the
// coordinator (run_here.h), and its guests (run_as_guest.h).
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_HOSTS_OF_RUN_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_HOSTS_OF_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/client/client.h"
#include "launcher/cli/arguments.h"
#include "proto/job.pb.h"

namespace lockstep::launcher {

// What all hosts of the run know.
struct RunTokens {
  std::string shared;  // of --token-file or LOCKSTEP_TOKEN
  std::string shown;   // what callers show: with TLS it is derived from that (client/token.h)
};
// Errors: FailedPrecondition when there is none, or it is none that will do; as ReadToken.
absl::StatusOr<RunTokens> TokensOfRun(const CoordinatorArgs& args, bool plaintext);

// Returns a host's addresses as numbers, without a scope; none: it has none, or is not known. May
// block as the system's resolver does.
using Resolver = std::function<std::vector<std::string>(const std::string& host)>;
std::vector<std::string> AddressesOfHost(const std::string& host);
// Returns whether `host`, a name or an address, is this one: it is called so, or has an address of
// it. Blocks as `resolve`.
bool IsThisHost(const std::string& host, const Resolver& resolve = AddressesOfHost);
// Returns whether `host`, of a list of hosts that are to be entered, is not: it is this one.
// `resolve` is asked for addresses, and for names of which the first label is this host's short
// name: what others lead to is the entering program's to know (ssh has aliases). Blocks as
// `resolve`.
bool NeedsNoEntering(const std::string& host, const Resolver& resolve = AddressesOfHost);
// Returns whether the host of HOST:PORT is this one. Blocks as IsThisHost.
bool IsEndpointHere(const std::string& endpoint);

// That the job asks for no labels, which hosts without a daemon have none of. Errors:
// FailedPrecondition.
absl::Status CheckNoLabels(const JobSpec& spec);
// That this host alone can be what the job asks for. Errors: FailedPrecondition.
absl::Status CheckOneHost(const JobSpec& spec);

// The worker slots that one host offers: all processes that the job may ever have, or, over several
// hosts, the most of any host of it, with the spares.
int SlotsOfHost(const JobSpec& spec, bool over_hosts);

// OK: this host has the memory for so many workers' programs, which SlotsOfHost said. Errors:
// ResourceExhausted.
absl::Status CheckMemory(const JobSpec& spec, int workers);

// The job has ended: blocks until the other hosts have seen that and left, for some seconds at
// most.
void AwaitGuestsEnd(coordinator::Client* client);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_HOSTS_OF_RUN_H_
