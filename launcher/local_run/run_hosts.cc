// SPDX-License-Identifier: Apache-2.0
// The hosts of a run: this one, those of --hosts, and guests.
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status.h"
#include "common/thread.h"
#include "job/meaning/workers.h"
#include "launcher/agent/host.h"
#include "launcher/local_run/hosts_of_run.h"
#include "launcher/local_run/local_run.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kHostsLeave = absl::Seconds(15);
constexpr absl::Duration kLookAgain = absl::Minutes(1);
// From a signal until a fetch that does not end waits for a disk.
constexpr absl::Duration kDiskAnswers = absl::Seconds(5);

}  // namespace

absl::Status LocalRun::EnterHosts(const JobSpec& spec, const std::string& address) {
  LS_ASSIGN_OR_RETURN(const std::vector<RemoteHosts::Part> parts,
                      PartsOf(*plan_, args_, spec, address));
  {
    absl::MutexLock lock(&mu_);
    least_slots_ = job::LeastWorkers(spec);
    for (const HostSlots& host : plan_->hosts) {
      slots_.push_back(SlotsOn(host, spec));
      slots_left_ += slots_.back();
    }
  }
  RemoteHosts::Callbacks told;
  told.on_line = [this](size_t number, const std::string& line) {
    renderer_.Message(absl::StrCat("[", plan_->hosts[number].host, "] ", line));
  };
  told.on_end = [this](size_t number, const RemoteEnd& end) { OnHostEnded(number, end); };
  LS_ASSIGN_OR_RETURN(remote_, RemoteHosts::Start(spawner_, parts, std::move(told)));
  return absl::OkStatus();
}

void LocalRun::OnHostEnded(size_t number, const RemoteEnd& end) {
  const HostSlots& host = plan_->hosts[number];
  std::shared_ptr<coordinator::Client> client;
  CancelJobRequest request;
  {
    absl::MutexLock lock(&mu_);
    if (over_ || leaving_ || signals_ > 0) return;
    client = client_;
    request.set_job_id(job_id_);
    request.set_kill(true);
    slots_left_ -= slots_[number];
    if (!end.was_ready) {
      host_failure_ =
          std::string(WhyNoPart(host.host, plan_->command, plan_->launcher, end).message());
    } else if (slots_left_ < least_slots_) {
      host_failure_ =
          absl::StrCat("host ", host.host, " has left the run, and the others have ", slots_left_,
                       " worker slots: the job needs ", least_slots_, " (elastic.min_workers)",
                       end.last_line.empty() ? "" : absl::StrCat("; it said: ", end.last_line));
    }
    if (host_failure_.empty()) request.clear_job_id();
  }
  if (request.job_id().empty()) {
    return renderer_.Message(
        absl::StrCat("warning: host ", host.host, " has left the run, which goes on without it"));
  }
  const absl::Status cancelled = client->CancelJob(request, kCallTimeout).status();
  if (!cancelled.ok() && !absl::IsFailedPrecondition(cancelled)) StopEverything();
}

void LocalRun::LeaveHosts(const absl::StatusOr<JobStatus>& ended,
                          const coordinator::ClientOptions& coordinator) {
  if (ended.ok()) TakeModel(*ended, coordinator);
  remote_->Release();
  remote_->AwaitEnd(kHostsLeave);
}

// That the model cannot be had changes nothing about the run.
void LocalRun::TakeModel(const JobStatus& ended, const coordinator::ClientOptions& coordinator) {
  std::shared_ptr<coordinator::FilesClient> files;
  {
    absl::MutexLock lock(&mu_);
    files = files_ = coordinator::FilesClient::Create(coordinator);
    if (signals_ > 0) files->Stop();
  }
  BroughtModel model;
  bool brought = false;
  const Thread bringer("model", [&] {
    const auto go_on = [this] {
      absl::MutexLock lock(&mu_);
      return signals_ == 0;
    };
    model = BringModel(files.get(), ended, known_.run_dir(), go_on);
    absl::MutexLock lock(&mu_);
    brought = true;
    changed_.NotifyAll();
  });
  {
    absl::MutexLock lock(&mu_);
    while (!brought && signals_ == 0) changed_.WaitFor(&mu_, kLookAgain);
    changed_.AwaitFor(&mu_, kDiskAnswers, [&brought] { return brought; });
    disk_hangs_ = !brought;
  }
  if (disk_hangs_) {
    hung_disk_.Wait("the disk of the run's folder does not answer, and the model is not fetched",
                    /*waits=*/false);
    remote_.reset();
    ::_exit(Finish(ended));  // with the thread that waits for the disk
  }
  cut_short_ = model.interrupted;
  if (!model.said.empty()) renderer_.Message(model.said);
}

absl::StatusOr<std::optional<PrivateCoordinator::Network>> LocalRun::NetworkOfRun() {
  if (args_.hosts.has_value()) {
    LS_ASSIGN_OR_RETURN(plan_, PlanHosts(*args_.hosts));
    LS_ASSIGN_OR_RETURN(job_, JobOnHosts(plan_->hosts, args_.job));
    return PrivateCoordinator::Network{plan_->listen, plan_->tokens, plan_->plaintext};
  }
  if (!args_.rendezvous.has_value()) return std::nullopt;
  const RendezvousArgs& rendezvous = *args_.rendezvous;
  LS_ASSIGN_OR_RETURN(RunTokens tokens, TokensOfRun(args_.coordinator, rendezvous.plaintext));
  return PrivateCoordinator::Network{rendezvous.endpoint, std::move(tokens), rendezvous.plaintext,
                                     /*guests_come=*/true};
}

absl::Status LocalRun::PrepareHosts(JobSpec* spec) const {
  LS_RETURN_IF_ERROR(CheckNoLabels(*spec));
  if (plan_.has_value()) return PutOnHosts(plan_->hosts, spec);
  if (!args_.rendezvous.has_value()) return CheckOneHost(*spec);
  if (spec->resources().rank0_node().empty()) {
    spec->mutable_resources()->set_rank0_node(HostName());
  }
  return absl::OkStatus();
}

}  // namespace lockstep::launcher
