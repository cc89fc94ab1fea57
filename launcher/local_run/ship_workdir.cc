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

constexpr absl::Duration kSendWithin = absl::Minutes(2);

}  // namespace

absl::StatusOr<std::string> ShipWorkdir(coordinator::PackagesClient* client,
                                        SubmitJobRequest* request) {
  const std::string& workdir = request->spec().workdir();
  if (workdir.empty() || absl::StartsWith(workdir, "/")) return std::string();
  absl::StatusOr<Package> package = PackFolder(ResolvePath(request->submit_dir(), workdir));
  if (absl::IsNotFound(package.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("workdir: ", std::string(package.status().message()),
                     " (a relative one is meant from this folder and sent to the nodes; an "
                     "absolute one is theirs)"));
  }
  if (!package.ok()) return Annotate(package.status(), "workdir");
  LS_RETURN_IF_ERROR(client->Put(package->id, package->bytes, kSendWithin).status());
  request->mutable_spec()->set_workdir(coordinator::PackageWorkdir(package->id));
  return package->id;
}

}  // namespace lockstep::launcher
