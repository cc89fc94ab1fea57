// SPDX-License-Identifier: Apache-2.0
// The verbs of a user of a running coordinator about jobs that it has: list, nodes, describe, logs,
// cancel, scale.

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "common/status.h"
#include "coordinator/client/client.h"
#include "coordinator/client/diagnosis.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/follow/standard_streams.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/fetch.h"
#include "launcher/verbs/run_verb.h"
#include "launcher/verbs/tables.h"
#include "proto/message_json.h"

namespace lockstep::launcher {
namespace {

// What a job that does not run waits for, and how it ended, on stderr, once for each reason.
class StateTeller {
 public:
  explicit StateTeller(TextSink* sink) : sink_(sink) {}
  void Tell(const JobStatus& told) {
    const JobStatus status = Printed(told);
    const std::string line =
        absl::StrCat(absl::AsciiStrToLower(JobState_Name(status.state())), ": ", status.reason());
    // That it was accepted, and that it runs, needs no words.
    const bool first = last_.empty() && status.state() == PENDING;
    const bool runs = status.state() == STARTING || status.state() == RUNNING;
    if (!first && !runs && !status.reason().empty() && line != last_) {
      sink_->Err(absl::StrCat(line, "\n"));
    }
    last_ = line;
  }

 private:
  TextSink* const sink_;
  std::string last_;
};

}  // namespace

int RunVerb(const ListArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  ListJobsRequest request;
  request.set_include_ended(true);
  const auto response = (*client)->ListJobs(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  ListJobsResponse shown;
  for (const JobStatus& job : response->jobs()) {
    const std::string& state = JobState_Name(job.state());
    const bool is_one = args.states.empty() || std::find(args.states.begin(), args.states.end(),
                                                         state) != args.states.end();
    if (is_one && (args.user.empty() || args.user == job.user())) *shown.add_jobs() = job;
  }
  std::cout << (args.common.output == Output::kJson ? ListJson(shown) : ListTable(shown));
  return kExitOk;
}

int RunVerb(const NodesArgs& args) {
  const auto options = ClientOptionsOf(args.coordinator);
  if (!options.ok()) return Complain(options.status());
  const auto response = coordinator::Client::Create(*options)->GetCluster(kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  std::cout << (args.common.output == Output::kJson ? NodesJson(*response) : NodesTable(*response));
  const std::string warning = coordinator::CertificateWarning(*options, kReplyTimeout);
  if (!warning.empty()) std::cerr << "warning: " << warning << "\n";
  return kExitOk;
}

int RunVerb(const DescribeArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  DescribeJobRequest request;
  request.set_job_id(args.job);
  const auto response = (*client)->DescribeJob(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  std::cout << (args.common.output == Output::kJson
                    ? DescribeJson(*response)
                    : DescribeText(*response,
                                   FetchCommand(response->status(), args.coordinator.flags)));
  return kExitOk;
}

int RunVerb(const LogsArgs& args) {
  StopSignals::Block();
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  StandardStreams streams;
  std::atomic<bool> stopped{false};
  // As long as something is shown, since nobody may read it.
  StopSignals signals([&](int) {
    stopped = true;
    (*client)->StopFollowing();
    streams.Hurry();
  });
  FollowJobRequest request;
  request.set_job_id(args.job);
  request.set_logs(true);
  request.set_follow(args.follow);
  StateTeller teller(&streams);
  bool printed = false;
  bool told = false;  // such as where lines are that are not here
  bool seen = false;  // that the job is there
  const absl::Status followed = (*client)->FollowJob(
      request,
      [&](const JobEvent& event) {
        seen = true;
        if (event.has_notice()) {
          streams.Err(absl::StrCat(Printable(event.notice()), "\n"));
          told = true;
        }
        if (event.has_state() && args.follow && !args.common.quiet) teller.Tell(event.state());
        if (!event.has_log()) return true;
        if (args.rank.has_value() && *args.rank != event.log().slot()) return true;
        printed = true;
        const std::string where =
            absl::StrCat("[", Printable(event.log().host()), ":", event.log().slot(), "] ");
        std::string text;
        for (const std::string& line : event.log().lines()) {
          absl::StrAppend(&text, where, Printable(line), "\n");
        }
        streams.Out(text);
        streams.AwaitRoom();
        return !stopped && streams.out_failure().ok();
      },
      kReconnectFor);
  streams.Flush().IgnoreError();
  const absl::Status written = streams.out_failure();  // of any line
  if (stopped) return kExitInterrupted;
  if (!followed.ok()) return Complain(seen ? WithoutFollower(followed) : followed);
  if (!written.ok()) {
    std::cerr << "error: cannot write to the standard output: " << written.message() << std::endl;
    return kExitFailure;
  }
  if (args.rank.has_value() && !printed && !told && !args.common.quiet) {
    std::cerr << "no line of a rank " << *args.rank << " is there; 'launcher describe' shows the "
              << "job's ranks" << std::endl;
  }
  return kExitOk;
}

int RunVerb(const CancelArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  int code = kExitOk;
  for (const std::string& job : args.jobs) {
    CancelJobRequest request;
    request.set_job_id(job);
    request.set_kill(args.kill);
    const auto response = (*client)->CancelJob(request, kReplyTimeout);
    if (response.ok()) {
      std::cerr << (args.kill ? "killed " : "asked to stop: ") << Printable(job) << "\n";
      continue;
    }
    const int failed = Complain(response.status());
    if (code == kExitOk) code = failed;
    // The others would only be waited for, too.
    if (failed == kExitNoCoordinator) break;
  }
  return code;
}

namespace {

// Returns when a job that was scaled has so many workers: one that waits begins again with them.
const char* WhenScaled(coordinator::Client* client, const std::string& job) {
  DescribeJobRequest request;
  request.set_job_id(job);
  const auto described = client->DescribeJob(request, kReplyTimeout);
  const bool waits = described.ok() && described->status().state() == PENDING;
  return waits ? "when it begins again" : "at the next step's end";
}

}  // namespace

int RunVerb(const ScaleArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  ScaleJobRequest request;
  request.set_job_id(args.job);
  request.set_workers(args.workers);
  const auto response = (*client)->ScaleJob(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  std::cerr << Printable(args.job) << ": from " << response->workers_before() << " to "
            << args.workers << " workers " << WhenScaled(client->get(), args.job) << "\n";
  return kExitOk;
}

}  // namespace lockstep::launcher
