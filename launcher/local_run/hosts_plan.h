// SPDX-License-Identifier: Apache-2.0
// What a run with --hosts comes to: which hosts, how they are entered, where they reach the run's
// coordinator, and what each is told.
// Thread-safety: pure functions, but for the files and the system that they look at.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_HOSTS_PLAN_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_HOSTS_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_file.h"
#include "launcher/cli/arguments.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/local_run/remote_hosts.h"
#include "launcher/local_run/submission.h"
#include "proto/job.pb.h"

namespace lockstep::launcher {

struct HostsPlan {
  std::vector<HostSlots> hosts;
  std::string command;             // that enters hosts, as it was given: "ssh -p 2222"
  std::vector<std::string> enter;  // the words before a host and a command
  std::string launcher;            // on the hosts
  std::string listen;              // where the coordinator is to; its port may be 0
  // At which this host may be reached, best first; empty: `listen` is the endpoint.
  std::vector<std::string> addresses;
  RunTokens tokens;  // of this run alone
  bool plaintext = false;
};

// Errors: InvalidArgument (the host file), FailedPrecondition (it cannot be read; this host has no
// program to enter others with, or no address that can be reached from another one).
absl::StatusOr<HostsPlan> PlanHosts(const HostsArgs& args);

// The job's file as the hosts have it: nodes, where no host has a number of workers. Errors:
// FailedPrecondition (another number of hosts was asked for).
absl::StatusOr<JobArgs> JobOnHosts(const std::vector<HostSlots>& hosts, const JobArgs& job);
// Gives each host its number of workers, where one has a number. Errors: FailedPrecondition (more
// than the job's shards; the number is to be counted there).
absl::Status PutOnHosts(const std::vector<HostSlots>& hosts, JobSpec* spec);

// The job as a run with these flags has it, without running it; the problems of the file are in the
// result. Who counts what a job on this host wants a worker for each of is `counted`. A file that
// is good for `submit --array` alone is that of the first element, with a warning. Errors: as the
// functions above and LoadJob; InvalidArgument for --interfaces.
absl::StatusOr<job::LoadResult> LoadJobOfRun(const RunArgs& args, Counted counted = Counted::kHere);

// The coordinator that listens at `address`, from this host.
std::string AddressHere(const HostsPlan& plan, const std::string& address);
// By host: how its part is started and what it is told. The working folder is this process's.
absl::StatusOr<std::vector<RemoteHosts::Part>> PartsOf(const HostsPlan& plan, const RunArgs& args,
                                                       const JobSpec& spec,
                                                       const std::string& address);
// The worker slots of a host.
int SlotsOn(const HostSlots& host, const JobSpec& spec);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_HOSTS_PLAN_H_
