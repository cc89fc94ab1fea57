// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/client.h"

#include <grpcpp/client_context.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/client/call.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/diagnosis.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/renewal.h"
#include "coordinator/client/route.h"
#include "coordinator/client/trailing_keys.h"
#include "proto/coordinator.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

// How long it is looked why a coordinator is not reached.
constexpr absl::Duration kLookFor = absl::Seconds(2);
// When it has been away for so long it is looked, so often, whether the token is taken. Most
// absences are shorter.
constexpr absl::Duration kLookAfter = absl::Seconds(3);
constexpr absl::Duration kLookEvery = absl::Seconds(1);
// From this age on a client that is still used has its certificate renewed, as a follower has from
// the start: `launcher top` may be up for weeks.
constexpr absl::Duration kLivesLong = absl::Minutes(1);

// How many jobs are asked for at once: a few MB. For each page the coordinator looks at its whole
// queue.
constexpr int kPage = 10000;

// Whether a coordinator that is not reached turns the token away, which does not pass: it was
// revoked or has expired.
class TokenWatch {
 public:
  // Looks once more, at the one address of `options`. Blocks for kLookEvery at most, and for the
  // resolver when the address is a name. Errors: Unauthenticated: it is turned away there for good.
  // A connection that breaks off, as when a coordinator is killed, looks like that, too, but not
  // twice in a row at the same address. What is seen at another one says nothing of this: one that
  // stands by lets in whoever has a certificate.
  absl::Status Look(const ClientOptions& options) {
    absl::Status why = ExplainConnection(options, kLookEvery);
    int& refusals = refusals_[options.address];
    refusals = absl::IsUnauthenticated(why) ? refusals + 1 : 0;
    return refusals > 1 ? why : absl::OkStatus();
  }

 private:
  std::map<std::string, int> refusals_;  // by address, one after the other
};

class GrpcClient : public Client {
 public:
  explicit GrpcClient(const ClientOptions& options)
      : options_(WithCell(options)), route_(std::make_shared<Route>(options_)) {}

  absl::StatusOr<SubmitJobResponse> SubmitJob(const SubmitJobRequest& request,
                                              absl::Duration timeout) override {
    return Call<SubmitJobResponse>(&Coordinator::Stub::SubmitJob, request, timeout);
  }
  absl::StatusOr<ListJobsResponse> ListJobs(const ListJobsRequest& request,
                                            absl::Duration timeout) override {
    if (request.page_size() > 0) {
      return Call<ListJobsResponse>(&Coordinator::Stub::ListJobs, request, timeout);
    }
    ListJobsRequest page = request;
    page.set_page_size(kPage);
    ListJobsResponse all;
    for (;;) {
      LS_ASSIGN_OR_RETURN(ListJobsResponse next,
                          Call<ListJobsResponse>(&Coordinator::Stub::ListJobs, page, timeout));
      all.mutable_jobs()->MergeFrom(next.jobs());
      // A coordinator that knows no pages has said all.
      if (next.next_page_token().empty()) return all;
      if (next.next_page_token() == page.page_token()) {
        return absl::InternalError("the coordinator names the same page again");
      }
      page.set_page_token(next.next_page_token());
    }
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
  void StopCalls() override {
    absl::MutexLock lock(&mu_);
    calls_stopped_ = true;
    for (grpc::ClientContext* const call : calls_) call->TryCancel();
  }

 private:
  // A call that StopCalls ends, while it lives.
  class Stoppable {
   public:
    Stoppable(GrpcClient* client, grpc::ClientContext* call) : client_(*client), call_(call) {
      absl::MutexLock lock(&client_.mu_);
      client_.calls_.insert(call_);
      if (client_.calls_stopped_) call_->TryCancel();
    }
    ~Stoppable() {
      absl::MutexLock lock(&client_.mu_);
      client_.calls_.erase(call_);
    }
    Stoppable(const Stoppable&) = delete;
    Stoppable& operator=(const Stoppable&) = delete;

   private:
    GrpcClient& client_;
    grpc::ClientContext* const call_;
  };
  bool calls_stopped() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return calls_stopped_;
  }

  // There is a connection; what it shows is looked at soon, and from now on.
  void KeepRenewed() ABSL_LOCKS_EXCLUDED(mu_) {
    if (!IsRenewable(options_)) return;
    absl::MutexLock lock(&mu_);
    if (renewal_ == nullptr) renewal_ = std::make_unique<Renewal>(options_, route_, nullptr);
    renewal_->Connected();
  }
  bool IsNewlyOld() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return renewal_ == nullptr && Clock::Real()->Now() - made_ > kLivesLong;
  }

  // Once as long as it lasts: who asks again and again need not hear it each time.
  void WarnOfUnsaved(const grpc::ClientContext& context) ABSL_LOCKS_EXCLUDED(mu_) {
    if (!options_.warns_of_unsaved) return;
    const auto& trailing = context.GetServerTrailingMetadata();
    const auto found = trailing.find(kUnsavedKey);
    const bool unsaved = found != trailing.end();
    absl::MutexLock lock(&mu_);
    if (unsaved && !unsaved_) {
      LS_LOG_WARNING
          << "what is shown is not in the coordinator's journal yet and may be lost with "
             "the coordinator: "
          << absl::string_view(found->second.data(), found->second.size());
    }
    unsaved_ = unsaved;
  }

  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(grpc::Status (Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                          const Request&,
                                                                          Response*),
                                const Request& request, absl::Duration timeout) {
    CallRules rules;
    rules.stopped = [this] { return calls_stopped(); };
    Response response;
    const auto once = [&](const auto& channel, grpc::ClientContext* context) {
      const Stoppable stoppable(this, context);
      response.Clear();
      grpc::Status status = ((*Coordinator::NewStub(channel)).*method)(context, request, &response);
      if (status.ok()) WarnOfUnsaved(*context);
      return status;
    };
    LS_RETURN_IF_ERROR(CallUntilAnswered(options_, *route_, timeout, rules, once));
    if (IsNewlyOld()) KeepRenewed();
    return response;
  }

  // One connection's worth of events; whether the caller has seen enough.
  absl::Status FollowOnce(FollowJobRequest& request,
                          const std::function<bool(const JobEvent&)>& on_event, bool& heard);

  const ClientOptions options_;
  const std::shared_ptr<Route> route_;
  const absl::Time made_ = Clock::Real()->Now();
  absl::Mutex mu_;
  grpc::ClientContext* following_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  CondVar stop_;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  bool calls_stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool unsaved_ ABSL_GUARDED_BY(mu_) = false;              // what was shown last
  std::unique_ptr<Renewal> renewal_ ABSL_GUARDED_BY(mu_);  // null: not yet, or there is no need
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
  const Route::Way way = route_->Now();
  const auto stub = Coordinator::NewStub(way.channel);
  auto reader = stub->FollowJob(&context, request);
  JobEvent event;
  bool enough = false;
  while (!enough && reader->Read(&event)) {
    if (!std::exchange(heard, true)) KeepRenewed();
    request.set_after_sequence(event.sequence());
    // By the next connection what the caller named may be several jobs', or another's.
    if (event.has_state()) request.set_job_id(event.state().job_id());
    enough = !on_event(event);
  }
  if (enough) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!enough) route_->Ended(way, status, context);
  absl::MutexLock lock(&mu_);
  following_ = nullptr;
  if (enough || stopped_) return absl::OkStatus();
  return NobodyServed(status) ? absl::UnavailableError(status.error_message()) : FromGrpc(status);
}

absl::Status GrpcClient::FollowJob(const FollowJobRequest& request,
                                   std::function<bool(const JobEvent&)> on_event,
                                   absl::Duration give_up_after) {
  FollowJobRequest rest = request;
  Clock* const clock = Clock::Real();
  absl::Time last_heard = clock->Now(), look_at = last_heard + kLookAfter;
  TokenWatch token;
  for (int attempt = 0;; ++attempt) {
    bool heard = false;
    absl::Status status = FollowOnce(rest, on_event, heard);
    if (status.code() != absl::StatusCode::kUnavailable) return status;
    if (heard) {
      last_heard = clock->Now();
      look_at = last_heard + kLookAfter;
      attempt = 0;
    }
    if (IsRenewable(options_) && clock->Now() >= look_at) {
      LS_RETURN_IF_ERROR(token.Look(route_->Now().options));
      look_at = clock->Now() + kLookEvery;
    }
    if (clock->Now() - last_heard >= give_up_after) {
      LS_RETURN_IF_ERROR(ExplainConnection(route_->Now().options, kLookFor));
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
