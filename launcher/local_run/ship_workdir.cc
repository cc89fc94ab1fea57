// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/ship_workdir.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status.h"
#include "coordinator/client/package_store.h"
#include "launcher/agent/run_folder.h"
#include "launcher/package/package.h"

namespace lockstep::launcher {
namespace {

// Large ones take long over a thin line: no whole time is the limit.
constexpr absl::Duration kSilence = absl::Minutes(1);

}  // namespace

absl::Status ShipWorkdir(coordinator::PackagesClient* client, const std::string& runs,
                         SubmitJobRequest* request,
                         absl::FunctionRef<absl::Status(const std::string& id)> before_sending,
                         const std::atomic<bool>& stopped) {
  const std::string& workdir = request->spec().workdir();
  if (workdir.empty() || absl::StartsWith(workdir, "/")) return absl::OkStatus();
  absl::StatusOr<Package> package =
      PackFolder(ResolvePath(request->submit_dir(), workdir), runs, stopped);
  if (absl::IsNotFound(package.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("workdir: ", std::string(package.status().message()),
                     " (a relative one is meant from this folder and sent to the nodes; an "
                     "absolute one is theirs)"));
  }
  if (!package.ok()) return Annotate(package.status(), "workdir");
  LS_RETURN_IF_ERROR(before_sending(package->id));
  LS_RETURN_IF_ERROR(client->Put(package->id, package->bytes, kSilence).status());
  request->set_workdir(workdir);
  request->mutable_spec()->set_workdir(coordinator::PackageWorkdir(package->id));
  return absl::OkStatus();
}

absl::Status WorkdirSender::Send(
    const coordinator::ClientOptions& reached, const std::string& runs, SubmitJobRequest* request,
    absl::FunctionRef<absl::Status(const std::string& id)> before_sending) {
  const std::shared_ptr<coordinator::PackagesClient> client =
      coordinator::PackagesClient::Create(reached);
  {
    absl::MutexLock lock(&mu_);
    client_ = client;
    if (stopped_) client->Stop();
  }
  return ShipWorkdir(client.get(), runs, request, before_sending, stopped_);
}

void WorkdirSender::Stop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  if (client_ != nullptr) client_->Stop();
}

}  // namespace lockstep::launcher
