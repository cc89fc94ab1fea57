// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/rpc.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/trailing_keys.h"
#include "coordinator/service/follower.h"
#include "coordinator/service/join_audit.h"
#include "coordinator/service/peer_host.h"
#include "coordinator/service/stream.h"

namespace lockstep::coordinator {
namespace {

// A stream that is refused: it says so and ends.
template <typename Message, typename Command>
class RefusedStream : public grpc::ServerBidiReactor<Message, Command> {
 public:
  explicit RefusedStream(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerUnaryReactor* RpcService::Serve(grpc::CallbackServerContext* context, const char* call,
                                            const Body& body) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Requester> who = gate_->Admit(call, *context);
  if (who.ok()) {
    body(reactor, *who);
  } else {
    reactor->Finish(ToGrpc(who.status()));
  }
  return reactor;
}

Hub::Done RpcService::Finish(grpc::ServerUnaryReactor* reactor, AuditEntry entry,
                             std::function<void(Hub::Reply&)> take) {
  return [audit = audit_, reactor, entry = std::move(entry),
          take = std::move(take)](Hub::Reply reply) mutable {
    if (entry.on.empty()) entry.on = reply.submitted.job_id();
    audit->Note(entry, reply.status);
    if (take) take(reply);
    reactor->Finish(ToGrpc(reply.status));
  };
}

void RpcService::FinishShown(grpc::CallbackServerContext* context,
                             grpc::ServerUnaryReactor* reactor) {
  hub_->AwaitSaved([context, reactor](const Hub::Reply& reply) {
    if (absl::IsUnavailable(reply.status)) return reactor->Finish(ToGrpc(reply.status));
    if (!reply.status.ok()) {
      context->AddTrailingMetadata(kUnsavedKey, std::string(reply.status.message()));
    }
    reactor->Finish(grpc::Status::OK);
  });
}

grpc::ServerUnaryReactor* RpcService::SubmitJob(grpc::CallbackServerContext* context,
                                                const SubmitJobRequest* request,
                                                SubmitJobResponse* response) {
  const auto submit = [&](grpc::ServerUnaryReactor* reactor, const Requester& who) {
    SubmitJobRequest asked = *request;
    *asked.mutable_by() = who;
    // An administrator may act for others; everybody else is who they are.
    if (who.role() != ROLE_ADMIN || asked.user().empty()) asked.set_user(who.user());
    // A job is accepted with all that it needs; of one that was accepted the answer was lost.
    const std::string package = PackageOf(request->spec().workdir());
    if (!package.empty() && !packages_->Has(package) && !hub_->IsRepeated(asked)) {
      reactor->Finish(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                                   "the coordinator does not have the job's workdir: submit it "
                                   "with the launcher, which sends it"));
      return;
    }
    AuditEntry entry{who, "submit", "", absl::StrCat(request->spec().name(), " of ", asked.user())};
    hub_->Submit(asked, Finish(reactor, std::move(entry), [response](Hub::Reply& reply) {
                   *response = std::move(reply.submitted);
                 }));
  };
  return Serve(context, "Coordinator/SubmitJob", submit);
}

grpc::ServerUnaryReactor* RpcService::ListJobs(grpc::CallbackServerContext* context,
                                               const ListJobsRequest* request,
                                               ListJobsResponse* response) {
  return Serve(context, "Coordinator/ListJobs", [&](auto* reactor, const Requester& who) {
    absl::StatusOr<ListJobsResponse> page = hub_->List(*request, who);
    if (!page.ok()) return reactor->Finish(ToGrpc(page.status()));
    *response = *std::move(page);
    FinishShown(context, reactor);
  });
}

grpc::ServerUnaryReactor* RpcService::DescribeJob(grpc::CallbackServerContext* context,
                                                  const DescribeJobRequest* request,
                                                  DescribeJobResponse* response) {
  return Serve(context, "Coordinator/DescribeJob", [&](auto* reactor, const Requester& who) {
    absl::StatusOr<DescribeJobResponse> described = hub_->Describe(request->job_id(), who);
    if (!described.ok()) return reactor->Finish(ToGrpc(described.status()));
    *response = *std::move(described);
    FinishShown(context, reactor);
  });
}

grpc::ServerUnaryReactor* RpcService::CancelJob(grpc::CallbackServerContext* context,
                                                const CancelJobRequest* request,
                                                CancelJobResponse*) {
  return Serve(context, "Coordinator/CancelJob", [&](auto* reactor, const Requester& who) {
    hub_->Post(CancelRequested{request->job_id(), request->kill(), who},
               Finish(reactor, {who, "cancel", request->job_id(), request->kill() ? "kill" : ""}));
  });
}

grpc::ServerUnaryReactor* RpcService::ScaleJob(grpc::CallbackServerContext* context,
                                               const ScaleJobRequest* request,
                                               ScaleJobResponse* response) {
  return Serve(context, "Coordinator/ScaleJob", [&](auto* reactor, const Requester& who) {
    hub_->Post(
        ScaleRequested{request->job_id(), request->workers(), who},
        Finish(reactor,
               {who, "scale", request->job_id(), absl::StrCat(request->workers(), " workers")},
               [response](Hub::Reply& reply) { *response = std::move(reply.scaled); }));
  });
}

grpc::ServerUnaryReactor* RpcService::GetCluster(grpc::CallbackServerContext* context,
                                                 const GetClusterRequest*,
                                                 GetClusterResponse* response) {
  return Serve(context, "Coordinator/GetCluster", [&](auto* reactor, const Requester& who) {
    *response = hub_->Cluster(who);
    FinishShown(context, reactor);
  });
}

grpc::ServerUnaryReactor* RpcService::DrainNode(grpc::CallbackServerContext* context,
                                                const DrainNodeRequest* request,
                                                DrainNodeResponse*) {
  return Serve(context, "Coordinator/DrainNode", [&](auto* reactor, const Requester& who) {
    const bool named = who.role() == ROLE_ADMIN && !request->user().empty();
    hub_->Post(DrainRequested{request->node(), request->reason(),
                              named ? request->user() : who.user(), who},
               Finish(reactor, {who, "drain", request->node(), request->reason()}));
  });
}

grpc::ServerUnaryReactor* RpcService::UndrainNode(grpc::CallbackServerContext* context,
                                                  const UndrainNodeRequest* request,
                                                  UndrainNodeResponse*) {
  return Serve(context, "Coordinator/UndrainNode", [&](auto* reactor, const Requester& who) {
    hub_->Post(UndrainRequested{request->node(), who},
               Finish(reactor, {who, "undrain", request->node(), ""}));
  });
}

grpc::ServerUnaryReactor* RpcService::HoldJob(grpc::CallbackServerContext* context,
                                              const HoldJobRequest* request, HoldJobResponse*) {
  return Serve(context, "Coordinator/HoldJob", [&](auto* reactor, const Requester& who) {
    hub_->Post(
        HoldRequested{request->job_id(), request->release(), who},
        Finish(reactor, {who, request->release() ? "release" : "hold", request->job_id(), ""}));
  });
}

grpc::ServerUnaryReactor* RpcService::GetUsage(grpc::CallbackServerContext* context,
                                               const GetUsageRequest* request,
                                               GetUsageResponse* response) {
  return Serve(context, "Coordinator/GetUsage", [&](auto* reactor, const Requester&) {
    *response = hub_->Usage(*request);
    FinishShown(context, reactor);
  });
}

grpc::ServerWriteReactor<JobEvent>* RpcService::FollowJob(grpc::CallbackServerContext* context,
                                                          const FollowJobRequest* request) {
  return Follower::Start(hub_, *request, gate_->Admit("Coordinator/FollowJob", *context));
}

grpc::ServerBidiReactor<AgentMessage, AgentCommand>* RpcService::AgentSession(
    grpc::CallbackServerContext* context) {
  const absl::StatusOr<Requester> who = gate_->Admit("Coordinator/AgentSession", *context);
  if (!who.ok()) return new RefusedStream<AgentMessage, AgentCommand>(ToGrpc(who.status()));
  Hub* const hub = hub_;
  const auto joins = std::make_shared<JoinAudit>(audit_, *who);
  return ServerStream<AgentMessage, ToAgent>::Start(
      {[hub](std::shared_ptr<Outlet<ToAgent>> outlet) { return hub->AddAgent(std::move(outlet)); },
       [hub, joins](SessionId session) {
         joins->Ended();
         hub->RemoveAgent(session);
       },
       [hub, joins, who = *who](SessionId session, AgentMessage message) {
         joins->Said(message);
         hub->Post(AgentSaid{session, std::move(message), who.peer(), who.token_id(),
                             who.role() == ROLE_JOIN ? who.user() : ""});
       },
       [joins](const AgentCommand& command) { joins->Told(command); }});
}

grpc::ServerBidiReactor<WorkerMessage, WorkerCommand>* RpcService::WorkerSession(
    grpc::CallbackServerContext* context) {
  const absl::StatusOr<Requester> who = gate_->Admit("Coordinator/WorkerSession", *context);
  if (!who.ok()) return new RefusedStream<WorkerMessage, WorkerCommand>(ToGrpc(who.status()));
  Hub* const hub = hub_;
  return ServerStream<WorkerMessage, ToWorker>::Start(
      {[hub](std::shared_ptr<Outlet<ToWorker>> outlet) {
         return hub->AddWorker(std::move(outlet));
       },
       [hub](SessionId session) { hub->RemoveWorker(session); },
       [hub, shown = who->user()](SessionId session, WorkerMessage message) {
         hub->Post(WorkerSaid{session, std::move(message), shown});
       }});
}

}  // namespace lockstep::coordinator
