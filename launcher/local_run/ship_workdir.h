// SPDX-License-Identifier: Apache-2.0
// Sends a job's workdir along with it, when the job runs on other hosts.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_SHIP_WORKDIR_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_SHIP_WORKDIR_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/client/client.h"
#include "coordinator/client/packages.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// A relative workdir is packed, handed to the coordinator, and named by its package in the request;
// an absolute one is the nodes' own. What is in the folder `runs` is not sent (PackFolder). Blocks.
// `before_sending` is told the package's name; an error of it ends this. `stopped` ends the
// packing; the sending ends with client->Stop(). Errors: FailedPrecondition, InvalidArgument and
// ResourceExhausted as PackFolder, with what to do; those of PackagesClient::Put; Cancelled when it
// was stopped.
absl::Status ShipWorkdir(coordinator::PackagesClient* client, const std::string& runs,
                         SubmitJobRequest* request,
                         absl::FunctionRef<absl::Status(const std::string& id)> before_sending,
                         const std::atomic<bool>& stopped);

// The same for a thread that another may stop. Thread-safety: one thread sends, any may stop it.
class WorkdirSender {
 public:
  // As ShipWorkdir, to the coordinator that `reached` names. Errors: also Cancelled, when it was
  // stopped before or meanwhile.
  absl::Status Send(const coordinator::ClientOptions& reached, const std::string& runs,
                    SubmitJobRequest* request,
                    absl::FunctionRef<absl::Status(const std::string& id)> before_sending);
  // Ends what is under way, and what is asked for later.
  void Stop();

 private:
  std::atomic<bool> stopped_{false};
  absl::Mutex mu_;
  std::shared_ptr<coordinator::PackagesClient> client_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_SHIP_WORKDIR_H_
