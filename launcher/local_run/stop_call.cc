// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/stop_call.h"

#include <utility>

namespace lockstep::launcher {

void StopCall::Reach(const coordinator::ClientOptions& coordinator) {
  // A client of its own: what GiveUp ends is this call alone.
  std::shared_ptr<coordinator::Client> client = coordinator::Client::Create(coordinator);
  absl::MutexLock lock(&mu_);
  client_ = std::move(client);
}

absl::Status StopCall::Ask(const std::string& job_id, absl::Duration patience) {
  std::shared_ptr<coordinator::Client> client;
  {
    absl::MutexLock lock(&mu_);
    if (given_up_) return absl::CancelledError("given up");
    client = client_;
  }
  if (client == nullptr) return absl::UnavailableError("there is no coordinator yet");
  CancelJobRequest request;
  request.set_job_id(job_id);
  const absl::Status asked = client->CancelJob(request, patience).status();
  return absl::IsFailedPrecondition(asked) ? absl::OkStatus() : asked;
}

void StopCall::GiveUp() {
  std::shared_ptr<coordinator::Client> client;
  {
    absl::MutexLock lock(&mu_);
    given_up_ = true;
    client = client_;
  }
  if (client != nullptr) client->StopCalls();
}

}  // namespace lockstep::launcher
