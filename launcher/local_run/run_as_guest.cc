// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/run_as_guest.h"

#include <string>

#include "common/status.h"
#include "job/meaning/defaults.h"
#include "launcher/local_run/guest.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/local_run/submission.h"

namespace lockstep::launcher {
namespace {

absl::StatusOr<GuestPlan> PlanOf(const RunArgs& args) {
  GuestPlan plan;
  LS_ASSIGN_OR_RETURN(const RunTokens tokens,
                      TokensOfRun(args.coordinator, args.rendezvous->plaintext));
  // What host 0 submits with its secrets, which are not asked for here.
  LS_ASSIGN_OR_RETURN(const job::LoadResult job, LoadGoodJob(args.job));
  const JobSpec& spec = job.spec;
  plan.endpoints = {args.rendezvous->endpoint};
  plan.token = tokens.shown;
  plan.slots = SlotsOfHost(spec, /*over_hosts=*/true);
  plan.patience = job::StartTimeout(spec);
  plan.run_dir = args.job.run_dir;
  plan.runs_dir = args.job.runs_dir;
  plan.interfaces = args.interfaces;
  if (spec.has_train()) plan.checkpoint_dir = spec.checkpoint().dir();
  plan.awaited = "the host with --node-rank=0";
  plan.advice =
      "start the same command with --node-rank=0 on the host of that address (start_timeout is "
      "how long this one waits)";
  return plan;
}

}  // namespace

int RunAsGuest(const RunArgs& args, Spawner* spawner) {
  return Guest([&args] { return PlanOf(args); }, spawner).Run();
}

}  // namespace lockstep::launcher
