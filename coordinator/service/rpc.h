// SPDX-License-Identifier: Apache-2.0
// The calls of coordinator.proto, each a thin shell around the hub.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_RPC_H_
#define LOCKSTEP_COORDINATOR_SERVICE_RPC_H_

#include <string>

#include "coordinator/service/hub.h"
#include "proto/coordinator.grpc.pb.h"

namespace lockstep::coordinator {

class RpcService : public Coordinator::CallbackService {
 public:
  // `hub` outlives the service. Empty `token`: callers need none.
  RpcService(Hub* hub, std::string token) : hub_(hub), token_(std::move(token)) {}

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
  grpc::ServerWriteReactor<JobEvent>* FollowJob(grpc::CallbackServerContext* context,
                                                const FollowJobRequest* request) override;
  grpc::ServerBidiReactor<AgentMessage, AgentCommand>* AgentSession(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<WorkerMessage, WorkerCommand>* WorkerSession(
      grpc::CallbackServerContext* context) override;

 private:
  // Errors: PERMISSION_DENIED.
  grpc::Status Authorize(const grpc::CallbackServerContext& context) const;

  Hub* const hub_;
  const std::string token_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_RPC_H_
