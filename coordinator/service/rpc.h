// SPDX-License-Identifier: Apache-2.0
// The calls of coordinator.proto, each a thin shell around the hub.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_RPC_H_
#define LOCKSTEP_COORDINATOR_SERVICE_RPC_H_

#include <functional>
#include <string>

#include "coordinator/client/package_store.h"
#include "coordinator/service/audit.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/hub.h"
#include "proto/coordinator.grpc.pb.h"

namespace lockstep::coordinator {

class RpcService : public Coordinator::CallbackService {
 public:
  // All of them outlive the service.
  RpcService(Hub* hub, const Gate* gate, Audit* audit, PackageStore* packages)
      : hub_(hub), gate_(gate), audit_(audit), packages_(packages) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const SubmitJobRequest* request,
                                      SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const ListJobsRequest* request,
                                     ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* DescribeJob(grpc::CallbackServerContext* context,
                                        const DescribeJobRequest* request,
                                        DescribeJobResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const CancelJobRequest* request,
                                      CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* ScaleJob(grpc::CallbackServerContext* context,
                                     const ScaleJobRequest* request,
                                     ScaleJobResponse* response) override;
  grpc::ServerUnaryReactor* GetCluster(grpc::CallbackServerContext* context,
                                       const GetClusterRequest* request,
                                       GetClusterResponse* response) override;
  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* context,
                                      const DrainNodeRequest* request,
                                      DrainNodeResponse* response) override;
  grpc::ServerUnaryReactor* UndrainNode(grpc::CallbackServerContext* context,
                                        const UndrainNodeRequest* request,
                                        UndrainNodeResponse* response) override;
  grpc::ServerUnaryReactor* HoldJob(grpc::CallbackServerContext* context,
                                    const HoldJobRequest* request,
                                    HoldJobResponse* response) override;
  grpc::ServerUnaryReactor* GetUsage(grpc::CallbackServerContext* context,
                                     const GetUsageRequest* request,
                                     GetUsageResponse* response) override;
  grpc::ServerWriteReactor<JobEvent>* FollowJob(grpc::CallbackServerContext* context,
                                                const FollowJobRequest* request) override;
  grpc::ServerBidiReactor<AgentMessage, AgentCommand>* AgentSession(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<WorkerMessage, WorkerCommand>* WorkerSession(
      grpc::CallbackServerContext* context) override;

 private:
  using Body = std::function<void(grpc::ServerUnaryReactor*, const Requester&)>;
  // Calls `body`, which finishes the call, for who may make it.
  grpc::ServerUnaryReactor* Serve(grpc::CallbackServerContext* context, const char* call,
                                  const Body& body);
  // Finishes a call that shows how things are: when that is durable, or with a word that it is not.
  void FinishShown(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor);
  // Finishes the call with the event's reply and notes it.
  Hub::Done Finish(grpc::ServerUnaryReactor* reactor, AuditEntry entry,
                   std::function<void(Hub::Reply&)> take = nullptr);

  Hub* const hub_;
  const Gate* const gate_;
  Audit* const audit_;
  PackageStore* const packages_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_RPC_H_
