// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/rpc.h"

#include <memory>
#include <utility>

#include "coordinator/client/grpc_status.h"
#include "coordinator/service/follower.h"
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

grpc::Status RpcService::CheckToken(const std::string& peer, const Metadata& metadata) const {
  if (!hub_->Leads()) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the coordinator leads no more");
  }
  const auto found = metadata.find(kTokenKey);
  const absl::string_view token =
      found == metadata.end() ? absl::string_view()
                              : absl::string_view(found->second.data(), found->second.size());
  if (door_->MayCall(peer, token)) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                      "the coordinator asks for a token and was shown none or a wrong one");
}

grpc::ServerUnaryReactor* RpcService::SubmitJob(grpc::CallbackServerContext* context,
                                                const SubmitJobRequest* request,
                                                SubmitJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const grpc::Status status = Authorize(*context); !status.ok()) {
    reactor->Finish(status);
    return reactor;
  }
  // A job is accepted with all that it needs.
  const std::string package = PackageOf(request->spec().workdir());
  if (!package.empty() && !packages_->Has(package)) {
    reactor->Finish(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                                 "the coordinator does not have the job's workdir: submit it with "
                                 "the launcher, which sends it"));
    return reactor;
  }
  hub_->Submit(*request, [reactor, response](Hub::Reply reply) {
    *response = std::move(reply.submitted);
    reactor->Finish(ToGrpc(reply.status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* RpcService::ListJobs(grpc::CallbackServerContext* context,
                                               const ListJobsRequest* request,
                                               ListJobsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const grpc::Status status = Authorize(*context);
  if (status.ok()) *response = hub_->List(request->include_ended());
  reactor->Finish(status);
  return reactor;
}

grpc::ServerUnaryReactor* RpcService::DescribeJob(grpc::CallbackServerContext* context,
                                                  const DescribeJobRequest* request,
                                                  DescribeJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  grpc::Status status = Authorize(*context);
  if (status.ok()) {
    absl::StatusOr<DescribeJobResponse> described = hub_->Describe(request->job_id());
    status = ToGrpc(described.status());
    if (described.ok()) *response = *std::move(described);
  }
  reactor->Finish(status);
  return reactor;
}

grpc::ServerUnaryReactor* RpcService::CancelJob(grpc::CallbackServerContext* context,
                                                const CancelJobRequest* request,
                                                CancelJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const grpc::Status status = Authorize(*context); !status.ok()) {
    reactor->Finish(status);
    return reactor;
  }
  hub_->Post(CancelRequested{request->job_id(), request->kill()},
             [reactor](Hub::Reply reply) { reactor->Finish(ToGrpc(reply.status)); });
  return reactor;
}

grpc::ServerUnaryReactor* RpcService::ScaleJob(grpc::CallbackServerContext* context,
                                               const ScaleJobRequest* request,
                                               ScaleJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const grpc::Status status = Authorize(*context); !status.ok()) {
    reactor->Finish(status);
    return reactor;
  }
  hub_->Post(ScaleRequested{request->job_id(), request->workers()},
             [reactor, response](Hub::Reply reply) {
               *response = std::move(reply.scaled);
               reactor->Finish(ToGrpc(reply.status));
             });
  return reactor;
}

grpc::ServerUnaryReactor* RpcService::GetCluster(grpc::CallbackServerContext* context,
                                                 const GetClusterRequest* request,
                                                 GetClusterResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const grpc::Status status = Authorize(*context);
  if (status.ok()) *response = hub_->Cluster();
  reactor->Finish(status);
  return reactor;
}

grpc::ServerUnaryReactor* RpcService::DrainNode(grpc::CallbackServerContext* context,
                                                const DrainNodeRequest* request,
                                                DrainNodeResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const grpc::Status status = Authorize(*context); !status.ok()) {
    reactor->Finish(status);
    return reactor;
  }
  hub_->Post(DrainRequested{request->node(), request->reason(), request->user()},
             [reactor](Hub::Reply reply) { reactor->Finish(ToGrpc(reply.status)); });
  return reactor;
}

grpc::ServerUnaryReactor* RpcService::UndrainNode(grpc::CallbackServerContext* context,
                                                  const UndrainNodeRequest* request,
                                                  UndrainNodeResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const grpc::Status status = Authorize(*context); !status.ok()) {
    reactor->Finish(status);
    return reactor;
  }
  hub_->Post(UndrainRequested{request->node()},
             [reactor](Hub::Reply reply) { reactor->Finish(ToGrpc(reply.status)); });
  return reactor;
}

grpc::ServerUnaryReactor* RpcService::HoldJob(grpc::CallbackServerContext* context,
                                              const HoldJobRequest* request,
                                              HoldJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const grpc::Status status = Authorize(*context); !status.ok()) {
    reactor->Finish(status);
    return reactor;
  }
  hub_->Post(HoldRequested{request->job_id(), request->release()},
             [reactor](Hub::Reply reply) { reactor->Finish(ToGrpc(reply.status)); });
  return reactor;
}

grpc::ServerUnaryReactor* RpcService::GetUsage(grpc::CallbackServerContext* context,
                                               const GetUsageRequest* request,
                                               GetUsageResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const grpc::Status status = Authorize(*context);
  if (status.ok()) *response = hub_->Usage(*request);
  reactor->Finish(status);
  return reactor;
}

grpc::ServerWriteReactor<JobEvent>* RpcService::FollowJob(grpc::CallbackServerContext* context,
                                                          const FollowJobRequest* request) {
  return Follower::Start(hub_, *request, Authorize(*context));
}

grpc::ServerBidiReactor<AgentMessage, AgentCommand>* RpcService::AgentSession(
    grpc::CallbackServerContext* context) {
  if (grpc::Status status = Authorize(*context); !status.ok()) {
    return new RefusedStream<AgentMessage, AgentCommand>(status);
  }
  Hub* const hub = hub_;
  return ServerStream<AgentMessage, ToAgent>::Start(
      {[hub](std::shared_ptr<Outlet<ToAgent>> outlet) { return hub->AddAgent(std::move(outlet)); },
       [hub](SessionId session) { hub->RemoveAgent(session); },
       [hub, peer = ParsePeer(context->peer()).host](SessionId session, AgentMessage message) {
         hub->Post(AgentSaid{session, std::move(message), peer});
       }});
}

grpc::ServerBidiReactor<WorkerMessage, WorkerCommand>* RpcService::WorkerSession(
    grpc::CallbackServerContext* context) {
  if (grpc::Status status = Authorize(*context); !status.ok()) {
    return new RefusedStream<WorkerMessage, WorkerCommand>(status);
  }
  Hub* const hub = hub_;
  return ServerStream<WorkerMessage, ToWorker>::Start(
      {[hub](std::shared_ptr<Outlet<ToWorker>> outlet) {
         return hub->AddWorker(std::move(outlet));
       },
       [hub](SessionId session) { hub->RemoveWorker(session); },
       [hub](SessionId session, WorkerMessage message) {
         hub->Post(WorkerSaid{session, std::move(message)});
       }});
}

}  // namespace lockstep::coordinator
