// SPDX-License-Identifier: Apache-2.0
// launcher submit: hands jobs in, and follows them or waits for them.
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/printable.h"
#include "common/status.h"
#include "coordinator/client/client.h"
#include "coordinator/client/files.h"
#include "coordinator/client/packages.h"
#include "job/meaning/job_state.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/follow/follow.h"
#include "launcher/follow/renderer.h"
#include "launcher/follow/result.h"
#include "launcher/follow/standard_streams.h"
#include "launcher/local_run/ship_workdir.h"
#include "launcher/local_run/stop_signals.h"
#include "launcher/local_run/submission.h"
#include "launcher/verbs/connect.h"
#include "launcher/verbs/fetch.h"
#include "launcher/verbs/run_verb.h"

namespace lockstep::launcher {
namespace {

absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

// FetchModel for a job that is submitted: that the model cannot be had changes nothing about the
// job. Returns `code`, or kExitInterrupted when a signal, which sets `stopped` and stops the
// client, came before the end.
int BringModel(const SubmitArgs& args, coordinator::FilesClient* client,
               const std::atomic<bool>& stopped, const JobStatus& ended, int code) {
  const absl::StatusOr<std::string> folder =
      FetchModel(client, ended, /*run_folder=*/"", [&stopped] { return !stopped; });
  if (folder.ok()) {
    if (!folder->empty() && !args.common.quiet) {
      std::cerr << "the model is in " << *folder << "/model on this host" << std::endl;
    }
    return code;
  }
  std::cerr << "the model is not on this host: "
            << PrintableLines(std::string(folder.status().message()))
            << "; fetch it: launcher fetch" << args.coordinator.flags << " " << ended.job_id()
            << std::endl;
  return absl::IsCancelled(folder.status()) ? kExitInterrupted : code;
}

// Follows until the end, or until a signal, which leaves the job as it is.
int FollowSubmitted(const SubmitArgs& args, const coordinator::ClientOptions& coordinator,
                    coordinator::Client* client, const std::string& job_id,
                    const std::string& tee) {
  RenderOptions options = RenderOptionsForStderr();
  options.progress = !args.common.quiet;
  Renderer renderer(options, std::make_unique<StandardStreams>(), Clock::Real());
  renderer.SetTee(tee);
  const auto files = coordinator::FilesClient::Create(coordinator);
  std::atomic<bool> stopped{false}, shown{false};
  // Also while something is shown, since nobody may read it, and for what comes after that. When
  // all is shown it is a disk that does not answer which is waited for.
  StopSignals signals([&](int count) {
    if (count > 1 && shown) ::_exit(kExitInterrupted);
    stopped = true;
    client->StopFollowing();
    files->Stop();
    renderer.Hurry();
  });
  const absl::StatusOr<JobStatus> ended = FollowToEnd(client, job_id, &renderer, kReconnectFor);
  if (ended.ok()) {
    const int code =
        renderer.Finish(args.common.output == Output::kJson
                            ? ResultJson(*ended)
                            : ResultSummary(*ended, FetchCommand(*ended, args.coordinator.flags)),
                        ExitCodeOfJob(*ended));
    shown = true;
    return BringModel(args, files.get(), stopped, *ended, code);
  }
  renderer.Finish("", kExitOk);
  if (absl::IsCancelled(ended.status())) {
    renderer.Message(absl::StrCat("no longer following; the job goes on. See it again: launcher ",
                                  "logs", args.coordinator.flags, " -f ", job_id,
                                  "; end it: launcher cancel", args.coordinator.flags, " ",
                                  job_id));
  } else {
    renderer.Error(std::string(WithoutFollower(ended.status()).message()));
  }
  const int code = renderer.Finish("", ExitCodeOf(ended.status(), Input::kJobFile));
  shown = true;
  return code;
}

// Says so when no node is there that could take the job. That the coordinator does not answer this
// is no reason to worry about the job, which it has. A token that submits lets no node join.
void TellOfMissingNodes(const SubmitArgs& args, coordinator::Client* client) {
  const absl::StatusOr<GetClusterResponse> cluster = client->GetCluster(kReplyTimeout);
  if (!cluster.ok()) return;
  for (const NodeStatus& node : cluster->nodes()) {
    if (node.connected()) return;
  }
  const CoordinatorArgs& to = args.coordinator;
  std::cerr << "the job waits: no node is connected. On each machine that shall run workers: "
            << "launcher join";
  if (absl::StartsWith(to.flags, " --coordinator=")) std::cerr << " --coordinator=" << to.address;
  if (!to.token_file.empty() || !to.token.empty()) {
    std::cerr << ", with --token-file and a token of role join (launcher token create --role join)";
  }
  std::cerr << std::endl;
}

// One, or one for each element of the array. Errors: as MakeSubmission.
absl::StatusOr<std::vector<SubmitJobRequest>> MakeRequests(const SubmitArgs& args) {
  std::vector<std::optional<int>> elements(args.array.begin(), args.array.end());
  if (elements.empty()) elements.emplace_back();
  JobArgs job = WithText(args.job);
  std::vector<SubmitJobRequest> requests;
  for (const std::optional<int> element : elements) {
    job.array_index = element;
    LS_ASSIGN_OR_RETURN(SubmitJobRequest request, MakeSubmission(job, Counted::kByCoordinator));
    request.set_hold(args.hold);
    request.mutable_after()->Assign(args.after.begin(), args.after.end());
    request.mutable_after_any()->Assign(args.after_any.begin(), args.after_any.end());
    if (element.has_value()) request.mutable_array()->set_at_once(args.array_at_once);
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<std::string> IdsOf(const std::vector<SubmitJobResponse>& jobs) {
  std::vector<std::string> ids;
  for (const SubmitJobResponse& job : jobs) ids.push_back(job.job_id());
  return ids;
}

// What ended a submission before its end, with the jobs that were accepted and how they are ended.
absl::Status WithAccepted(const absl::Status& why, const SubmitArgs& args,
                          const std::vector<SubmitJobResponse>& jobs, size_t wanted) {
  if (jobs.empty()) return why;
  const std::string ids = absl::StrJoin(IdsOf(jobs), " ");
  const std::string accepted =
      wanted == 1 ? "the job was accepted"
                  : absl::StrCat(jobs.size(), " of ", wanted, " jobs of the array were accepted");
  return absl::Status(
      why.code(),
      absl::StrCat(why.message(), "; ", accepted, "; to end ", jobs.size() == 1 ? "it" : "them",
                   ": launcher cancel", args.coordinator.flags, " ", ids));
}

// In order; the elements of an array get the first one's id. Errors: as SubmitJob, and Cancelled
// when `stopped` was set meanwhile; says which were accepted before.
absl::StatusOr<std::vector<SubmitJobResponse>> SubmitAll(const SubmitArgs& args,
                                                         coordinator::Client* client,
                                                         const std::atomic<bool>& stopped,
                                                         std::vector<SubmitJobRequest> requests) {
  std::vector<SubmitJobResponse> jobs;
  for (SubmitJobRequest& request : requests) {
    if (stopped) break;
    if (!jobs.empty()) request.mutable_array()->set_id(jobs.front().job_id());
    absl::StatusOr<SubmitJobResponse> job = client->SubmitJob(request, kReplyTimeout);
    if (!job.ok()) {
      absl::Status why = job.status();
      if (stopped) {
        why = absl::CancelledError(absl::StrCat("interrupted, and no answer came about the job ",
                                                "on its way: ", job.status().message()));
      } else if (coordinator::IsUnanswered(job.status())) {
        why = absl::Status(
            why.code(),
            absl::StrCat(why.message(), "; the job may have been accepted all the ",
                         "same: look for it with `launcher list` before you submit ", "it again"));
      }
      return WithAccepted(why, args, jobs, requests.size());
    }
    jobs.push_back(*std::move(job));
  }
  if (!stopped) return jobs;
  return WithAccepted(Interrupted(), args, jobs, requests.size());
}

// Elements of an array mostly have the same one. Errors: as ShipWorkdir.
absl::Status ShipWorkdirs(coordinator::PackagesClient* client, const std::atomic<bool>& stopped,
                          std::vector<SubmitJobRequest>& requests) {
  std::map<std::string, std::string> shipped;  // what the file says -> its package
  for (SubmitJobRequest& request : requests) {
    if (stopped) return Interrupted();
    const std::string folder = request.spec().workdir();
    const auto known = shipped.find(folder);
    if (known != shipped.end()) {
      if (known->second != folder) request.set_workdir(folder);
      request.mutable_spec()->set_workdir(known->second);
      continue;
    }
    const absl::Status sent = ShipWorkdir(
        client, /*runs=*/"", &request, [&](const std::string&) { return absl::OkStatus(); },
        stopped);
    if (stopped) return Interrupted();
    LS_RETURN_IF_ERROR(sent);
    shipped[folder] = request.spec().workdir();
  }
  return absl::OkStatus();
}

// Sends what the jobs need, and submits them. A signal ends it after the job that is on its way.
absl::StatusOr<std::vector<SubmitJobResponse>> ShipAndSubmit(
    const SubmitArgs& args, const coordinator::ClientOptions& coordinator,
    coordinator::Client* client, std::vector<SubmitJobRequest>& requests) {
  const auto packages = coordinator::PackagesClient::Create(coordinator);
  std::atomic<bool> stopped{false};
  StopSignals signals([&](int) {
    stopped = true;
    packages->Stop();
  });
  LS_RETURN_IF_ERROR(ShipWorkdirs(packages.get(), stopped, requests));
  return SubmitAll(args, client, stopped, requests);
}

void PrintSubmitted(const SubmitArgs& args, const SubmitJobResponse& job) {
  if (args.common.output == Output::kJson) {
    std::cout << JsonObject()
                     .Add("schema", 1)
                     .Add("job", job.job_id())
                     .Add("run_dir", job.run_dir())
                     .Done()
              << std::endl;
  } else {
    std::cout << Printable(job.job_id()) << std::endl;
  }
}

// Until all have ended, or until a signal. Returns the exit code of the first one that failed.
int AwaitAll(coordinator::Client* client, const std::vector<SubmitJobResponse>& jobs) {
  std::atomic<bool> stopped{false};
  StopSignals signals([&](int) {
    stopped = true;
    client->StopFollowing();
  });
  int code = kExitOk;
  for (const SubmitJobResponse& job : jobs) {
    FollowJobRequest request;
    request.set_job_id(job.job_id());
    request.set_follow(true);
    JobStatus last;
    const absl::Status followed = client->FollowJob(
        request,
        [&](const JobEvent& event) {
          if (event.has_state()) last = event.state();
          return !stopped.load();
        },
        kReconnectFor);
    if (stopped) return kExitInterrupted;
    if (!job::IsFinal(last.state())) return Complain(WithoutFollower(followed));
    std::cerr << Printable(absl::StrCat("job ", job.job_id(), ": ", JobState_Name(last.state()),
                                        ": ", last.reason()))
              << std::endl;
    if (code == kExitOk) code = ExitCodeOfJob(last);
  }
  return code;
}

}  // namespace

int RunVerb(const SubmitArgs& args) {
  absl::StatusOr<std::vector<SubmitJobRequest>> requests = MakeRequests(args);
  if (!requests.ok()) return Complain(requests.status(), Input::kJobFile);
  auto options = ClientOptionsOf(args.coordinator);
  if (!options.ok()) return Complain(options.status());
  // Also for who fetches the model when a job that was followed for long has ended.
  options->renewed = std::make_shared<coordinator::RenewedToken>();
  // Not before what is read above has come, which may be typed.
  StopSignals::Block();
  const auto client = coordinator::Client::Create(*options);
  const auto jobs = ShipAndSubmit(args, *options, client.get(), *requests);
  if (!jobs.ok()) return Complain(jobs.status(), Input::kJobFile);
  const std::string id = Printable(jobs->front().job_id());
  if (!args.common.quiet) {
    std::cerr << "submitted as " << id;
    if (jobs->size() > 1) std::cerr << " and " << jobs->size() - 1 << " more";
    std::cerr << std::endl;
    if (args.hold) {
      std::cerr << (jobs->size() == 1 ? "it is held until: launcher release"
                                      : "they are held, each until: launcher release")
                << args.coordinator.flags << (jobs->size() == 1 ? absl::StrCat(" ", id) : " JOB")
                << std::endl;
    } else {
      TellOfMissingNodes(args, client.get());
    }
  }
  if (args.follow) {
    return FollowSubmitted(args, *options, client.get(), jobs->front().job_id(),
                           requests->front().spec().logs().tee());
  }
  if (!args.common.quiet && !args.wait) {
    const std::string& flags = args.coordinator.flags;
    std::cerr << "  follow it:  launcher logs" << flags << " -f " << id << "\n"
              << "  look at it: launcher describe" << flags << " " << id << "\n"
              << (jobs->size() == 1 ? "  end it:     " : "  end them:   ") << "launcher cancel"
              << flags << " " << Printable(absl::StrJoin(IdsOf(*jobs), " ")) << std::endl;
  }
  for (const SubmitJobResponse& job : *jobs) PrintSubmitted(args, job);
  return args.wait ? AwaitAll(client.get(), *jobs) : kExitOk;
}

}  // namespace lockstep::launcher
