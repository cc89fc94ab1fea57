// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/top.h"

#include <unistd.h>

#include <iostream>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/cond_var.h"
#include "common/status.h"
#include "coordinator/client/client.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/run_verb.h"

namespace lockstep::launcher {
namespace {

// As often as agents say how things are.
constexpr absl::Duration kEvery = absl::Seconds(1);
// To the upper left corner, and everything below it away.
constexpr const char* kHome = "\033[H\033[J";

absl::StatusOr<TopFigures> Ask(coordinator::Client* client, const std::string& job) {
  TopFigures figures;
  LS_ASSIGN_OR_RETURN(figures.cluster, client->GetCluster(kReplyTimeout));
  ListJobsResponse listed;
  if (job.empty()) {
    LS_ASSIGN_OR_RETURN(listed, client->ListJobs({}, kReplyTimeout));
  } else {
    listed.add_jobs()->set_job_id(job);
  }
  for (const JobStatus& status : listed.jobs()) {
    // Nothing of it is shown beyond what a list says, for which alone the coordinator looks at its
    // queue once for all.
    if (job.empty() && status.state() == PENDING) {
      *figures.jobs.emplace_back().mutable_status() = status;
      continue;
    }
    DescribeJobRequest request;
    request.set_job_id(status.job_id());
    absl::StatusOr<DescribeJobResponse> described = client->DescribeJob(request, kReplyTimeout);
    // It may have been forgotten since it was listed.
    if (absl::IsNotFound(described.status()) && job.empty()) continue;
    // Of other users' jobs a submitter sees what a list says.
    if (absl::IsPermissionDenied(described.status()) && job.empty()) {
      *figures.jobs.emplace_back().mutable_status() = status;
      continue;
    }
    LS_RETURN_IF_ERROR(described.status());
    figures.jobs.push_back(*std::move(described));
  }
  return figures;
}

}  // namespace

int RunVerb(const TopArgs& args) {
  const bool once = args.once || ::isatty(STDOUT_FILENO) == 0;
  // One answer is given up as other verbs' are, by the signal itself.
  if (!once) StopSignals::Block();
  const auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  absl::Mutex mu;
  CondVar changed;
  bool stopped = false;
  std::unique_ptr<StopSignals> signals;
  if (!once) {
    signals = std::make_unique<StopSignals>([&](int) {
      {
        absl::MutexLock lock(&mu);
        stopped = true;
      }
      changed.NotifyAll();
      (*client)->StopCalls();
    });
  }
  for (;;) {
    const absl::StatusOr<TopFigures> figures = Ask(client->get(), args.job);
    if (!figures.ok()) {
      {
        absl::MutexLock lock(&mu);
        if (stopped) return kExitOk;
      }
      return Complain(figures.status());
    }
    if (args.common.output == Output::kJson) {
      std::cout << TopJson(*figures);
    } else {
      std::cout << (once ? "" : kHome) << TopTable(*figures);
    }
    std::cout.flush();
    absl::MutexLock lock(&mu);
    if (once || changed.AwaitFor(&mu, kEvery, [&stopped] { return stopped; })) return kExitOk;
  }
}

}  // namespace lockstep::launcher
