// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/jobs.h"

#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status.h"
#include "coordinator/client/client.h"
#include "google/protobuf/util/json_util.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/follow/follow.h"
#include "launcher/follow/renderer.h"
#include "launcher/follow/result.h"
#include "launcher/follow/text.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/local_run/submission.h"
#include "launcher/verbs/connect.h"

namespace lockstep::launcher {
namespace {

absl::StatusOr<std::unique_ptr<coordinator::Client>> Connect(const CoordinatorArgs& args) {
  LS_ASSIGN_OR_RETURN(const coordinator::ClientOptions options, ClientOptionsOf(args));
  return coordinator::Client::Create(options);
}

// Follows until the end, or until a signal, which leaves the job as it is.
int FollowSubmitted(const SubmitArgs& args, coordinator::Client* client, const std::string& job_id,
                    const std::string& tee) {
  RenderOptions options = RenderOptionsForStderr();
  options.progress = !args.common.quiet;
  Renderer renderer(options, Renderer::StandardSinks(), Clock::Real());
  renderer.SetTee(tee);
  StopSignals signals([&](int count) { client->StopFollowing(); });
  const absl::StatusOr<JobStatus> ended = FollowToEnd(client, job_id, &renderer, kReconnectFor);
  if (ended.ok()) {
    return renderer.Finish(
        args.common.output == Output::kJson ? ResultJson(*ended) : ResultSummary(*ended),
        ExitCodeOfJob(*ended));
  }
  renderer.Finish("", kExitOk);
  if (absl::IsCancelled(ended.status())) {
    renderer.Message(absl::StrCat("no longer following; the job goes on. See it again: launcher ",
                                  "logs -f ", job_id, "; end it: launcher cancel ", job_id));
  } else {
    renderer.Error(std::string(ended.status().message()));
  }
  return ExitCodeOf(ended.status());
}

}  // namespace

std::string ToJsonText(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) text = "{}";
  return text;
}

int RunSubmit(const SubmitArgs& args) {
  absl::StatusOr<SubmitJobRequest> request = MakeSubmission(args.job);
  if (!request.ok()) {
    if (!absl::IsInvalidArgument(request.status())) return Complain(request.status());
    std::cerr << request.status().message();
    return kExitBadJobFile;
  }
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  const auto response = (*client)->SubmitJob(*request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  if (args.follow) {
    std::cerr << "submitted as " << response->job_id() << std::endl;
    return FollowSubmitted(args, client->get(), response->job_id(), request->spec().logs().tee());
  }
  if (args.common.output == Output::kJson) {
    std::cout << R"({"schema":1,"job":)" << JsonString(response->job_id()) << R"(,"run_dir":)"
              << JsonString(response->run_dir()) << "}\n";
  } else {
    std::cout << response->job_id() << "\n";
  }
  return kExitOk;
}

int RunList(const ListArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  ListJobsRequest request;
  request.set_include_ended(true);
  const auto response = (*client)->ListJobs(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  if (args.common.output == Output::kJson) {
    std::cout << R"({"schema":1,"jobs":[)";
    const char* separator = "";
    for (const JobStatus& job : response->jobs()) {
      std::cout << separator << ToJsonText(job);
      separator = ",";
    }
    std::cout << "]}\n";
  } else {
    std::cout << JobTable(*response);
  }
  return kExitOk;
}

int RunDescribe(const DescribeArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  DescribeJobRequest request;
  request.set_job_id(args.job);
  auto response = (*client)->DescribeJob(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  for (auto& [name, value] : *response->mutable_spec()->mutable_secrets()) value = "***";
  if (args.common.output == Output::kJson) {
    std::cout << R"({"schema":1,"job":)" << ToJsonText(*response) << "}\n";
  } else {
    std::cout << JobText(*response);
  }
  return kExitOk;
}

int RunLogs(const LogsArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  std::atomic<bool> stopped{false};
  StopSignals signals([&](int count) {
    stopped = true;
    (*client)->StopFollowing();
  });
  FollowJobRequest request;
  request.set_job_id(args.job);
  request.set_logs(true);
  request.set_follow(args.follow);
  const absl::Status followed = (*client)->FollowJob(
      request,
      [&](const JobEvent& event) {
        if (event.has_notice()) std::cerr << event.notice() << std::endl;
        if (!event.has_log()) return true;
        if (args.rank.has_value() && *args.rank != event.log().slot()) return true;
        for (const std::string& line : event.log().lines()) {
          std::cout << "[" << event.log().host() << ":" << event.log().slot() << "] " << line
                    << "\n";
        }
        std::cout.flush();
        return static_cast<bool>(std::cout);
      },
      kReconnectFor);
  if (stopped) return kExitInterrupted;
  return followed.ok() ? kExitOk : Complain(followed);
}

int RunCancel(const CancelArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  CancelJobRequest request;
  request.set_job_id(args.job);
  request.set_kill(args.kill);
  const auto response = (*client)->CancelJob(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  std::cerr << (args.kill ? "killed " : "asked to stop: ") << args.job << "\n";
  return kExitOk;
}

int RunScale(const ScaleArgs& args) {
  auto client = Connect(args.coordinator);
  if (!client.ok()) return Complain(client.status());
  ScaleJobRequest request;
  request.set_job_id(args.job);
  request.set_workers(args.workers);
  const auto response = (*client)->ScaleJob(request, kReplyTimeout);
  if (!response.ok()) return Complain(response.status());
  std::cerr << args.job << ": from " << response->workers_before() << " to " << args.workers
            << " workers at the next step's end\n";
  return kExitOk;
}

}  // namespace lockstep::launcher
