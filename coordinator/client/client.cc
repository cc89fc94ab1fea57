// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/status.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/diagnosis.h"
#include "coordinator/client/grpc_status.h"
#include "proto/coordinator.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

class GrpcClient : public Client {
 public:
  explicit GrpcClient(const ClientOptions& options)
      : options_(options), stub_(Coordinator::NewStub(MakeChannel(options))) {}

  absl::StatusOr<SubmitJobResponse> SubmitJob(const SubmitJobRequest& request,
                                              absl::Duration timeout) override {
    return Call<SubmitJobResponse>(&Coordinator::Stub::SubmitJob, request, timeout);
  }
  absl::StatusOr<ListJobsResponse> ListJobs(const ListJobsRequest& request,
                                            absl::Duration timeout) override {
    return Call<ListJobsResponse>(&Coordinator::Stub::ListJobs, request, timeout);
  }
  absl::StatusOr<DescribeJobResponse> DescribeJob(const DescribeJobRequest& request,
                                                  absl::Duration timeout) override {
    return Call<DescribeJobResponse>(&Coordinator::Stub::DescribeJob, request, timeout);
  }
  absl::StatusOr<CancelJobResponse> CancelJob(const CancelJobRequest& request,
                                              absl::Duration timeout) override {
    return Call<CancelJobResponse>(&Coordinator::Stub::CancelJob, request, timeout);
  }
  absl::StatusOr<ScaleJobResponse> ScaleJob(const ScaleJobRequest& request,
                                            absl::Duration timeout) override {
    return Call<ScaleJobResponse>(&Coordinator::Stub::ScaleJob, request, timeout);
  }
  absl::StatusOr<GetClusterResponse> GetCluster(absl::Duration timeout) override {
    return Call<GetClusterResponse>(&Coordinator::Stub::GetCluster, GetClusterRequest(), timeout);
  }
  absl::StatusOr<DrainNodeResponse> DrainNode(const DrainNodeRequest& request,
                                              absl::Duration timeout) override {
    return Call<DrainNodeResponse>(&Coordinator::Stub::DrainNode, request, timeout);
  }
  absl::StatusOr<UndrainNodeResponse> UndrainNode(const UndrainNodeRequest& request,
                                                  absl::Duration timeout) override {
    return Call<UndrainNodeResponse>(&Coordinator::Stub::UndrainNode, request, timeout);
  }
  absl::StatusOr<HoldJobResponse> HoldJob(const HoldJobRequest& request,
                                          absl::Duration timeout) override {
    return Call<HoldJobResponse>(&Coordinator::Stub::HoldJob, request, timeout);
  }
  absl::StatusOr<GetUsageResponse> GetUsage(const GetUsageRequest& request,
                                            absl::Duration timeout) override {
    return Call<GetUsageResponse>(&Coordinator::Stub::GetUsage, request, timeout);
  }

  absl::Status FollowJob(const FollowJobRequest& request,
                         std::function<bool(const JobEvent&)> on_event,
                         absl::Duration give_up_after) override;
  void StopFollowing() override {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    stop_.NotifyAll();
    if (following_ != nullptr) following_->TryCancel();
  }

 private:
  // A coordinator that is just starting may not listen yet, so the call waits for the connection;
  // one that ends meanwhile may be started again, so the call is repeated. All calls may be. Over
  // TCP the first try does not wait: what TLS has against the connection is said at once.
  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(grpc::Status (Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                          const Request&,
                                                                          Response*),
                                const Request& request, absl::Duration timeout) {
    Clock* const clock = Clock::Real();
    const absl::Time deadline = clock->Now() + timeout;
    grpc::Status status;
    std::string refusal;  // the coordinator's own
    for (int attempt = 0; attempt == 0 || clock->Now() < deadline; ++attempt) {
      grpc::ClientContext context;
      ShowToken(options_, &context);
      context.set_wait_for_ready(attempt > 0 || !IsTcpAddress(options_.address));
      // gRPC takes the wall clock's time and turns it into the monotonic clock's at once, so that
      // no later change of the wall clock matters.
      context.set_deadline(std::chrono::system_clock::now() +
                           absl::ToChronoNanoseconds(deadline - clock->Now()));
      Response response;
      status = ((*stub_).*method)(&context, request, &response);
      if (status.ok()) return response;
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
      if (absl::StartsWith(status.error_message(), "the coordinator ")) {
        refusal = absl::StrCat(": ", status.error_message());
      } else if (attempt == 0) {
        LS_RETURN_IF_ERROR(ExplainConnection(options_, deadline - clock->Now()));
      }
      const absl::Duration backoff = absl::Milliseconds(BackoffMillis(attempt));
      clock->Sleep(std::min(backoff, deadline - clock->Now()));
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::UnavailableError(absl::StrCat("no coordinator answers at ", options_.address,
                                                 " within ", absl::FormatDuration(timeout),
                                                 refusal));
    }
    return FromGrpc(status);
  }

  // One connection's worth of events; whether the caller has seen enough.
  absl::Status FollowOnce(FollowJobRequest& request,
                          const std::function<bool(const JobEvent&)>& on_event, bool& heard);

  const ClientOptions options_;
  const std::unique_ptr<Coordinator::Stub> stub_;
  absl::Mutex mu_;
  grpc::ClientContext* following_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  CondVar stop_;
};

absl::Status GrpcClient::FollowOnce(FollowJobRequest& request,
                                    const std::function<bool(const JobEvent&)>& on_event,
                                    bool& heard) {
  grpc::ClientContext context;
  ShowToken(options_, &context);
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::OkStatus();
    following_ = &context;
  }
  auto reader = stub_->FollowJob(&context, request);
  JobEvent event;
  bool enough = false;
  while (!enough && reader->Read(&event)) {
    heard = true;
    request.set_after_sequence(event.sequence());
    enough = !on_event(event);
  }
  if (enough) context.TryCancel();
  const grpc::Status status = reader->Finish();
  absl::MutexLock lock(&mu_);
  following_ = nullptr;
  return enough || stopped_ ? absl::OkStatus() : FromGrpc(status);
}

absl::Status GrpcClient::FollowJob(const FollowJobRequest& request,
                                   std::function<bool(const JobEvent&)> on_event,
                                   absl::Duration give_up_after) {
  FollowJobRequest rest = request;
  Clock* const clock = Clock::Real();
  absl::Time last_heard = clock->Now();
  for (int attempt = 0;; ++attempt) {
    bool heard = false;
    absl::Status status = FollowOnce(rest, on_event, heard);
    if (status.code() != absl::StatusCode::kUnavailable) return status;
    if (heard) {
      last_heard = clock->Now();
      attempt = 0;
    }
    if (clock->Now() - last_heard >= give_up_after) {
      return absl::UnavailableError(absl::StrCat("the coordinator at ", options_.address,
                                                 " was out of reach for ",
                                                 absl::FormatDuration(give_up_after)));
    }
    absl::MutexLock lock(&mu_);
    const bool stopped =
        stop_.AwaitFor(&mu_, absl::Milliseconds(BackoffMillis(attempt)),
                       [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stopped_; });
    if (stopped) return absl::OkStatus();
  }
}

}  // namespace

std::unique_ptr<Client> Client::Create(const ClientOptions& options) {
  return std::make_unique<GrpcClient>(options);
}

}  // namespace lockstep::coordinator
