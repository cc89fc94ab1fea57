// SPDX-License-Identifier: Apache-2.0
// The verbs of the queue: hold, release, usage.
#include <iostream>

#include "common/printable.h"
#include "coordinator/client/client.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/run_verb.h"
#include "launcher/verbs/tables.h"

namespace lockstep::launcher {

int RunVerb(const HoldArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  HoldJobRequest request;
  request.set_job_id(args.job);
  request.set_release(args.release);
  const auto response = (*client)->HoldJob(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  std::cerr << Printable(args.job)
            << (args.release ? " may start\n" : " does not start before 'launcher release'\n");
  return kExitOk;
}

int RunVerb(const UsageArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  GetUsageRequest request;
  request.set_user(args.user);
  if (args.since.has_value()) {
    request.mutable_since()->set_seconds(absl::ToUnixSeconds(*args.since));
  }
  const auto response = (*client)->GetUsage(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  std::cout << (args.common.output == Output::kJson ? UsageJson(*response) : UsageTable(*response));
  return kExitOk;
}

}  // namespace lockstep::launcher
