// SPDX-License-Identifier: Apache-2.0
// The calls of coordinator.proto, each a thin shell around the hub.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_RPC_H_
#define LOCKSTEP_COORDINATOR_SERVICE_RPC_H_

#include <map>
#include <string>

#include "coordinator/client/package_store.h"
#include "coordinator/service/door.h"
#include "coordinator/service/hub.h"
#include "proto/coordinator.grpc.pb.h"

namespace lockstep::coordinator {

class RpcService : public Coordinator::CallbackService {
 public:
  // All of them outlive the service.
  RpcService(Hub* hub, Door* door, PackageStore* packages)
      : hub_(hub), door_(door), packages_(packages) {}

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

  // What a caller says of itself.
  using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;
  // Whether the caller at `peer` shows the token. Errors: PERMISSION_DENIED.
  grpc::Status CheckToken(const std::string& peer, const Metadata& metadata) const;

 private:
  // The same.
  grpc::Status Authorize(const grpc::CallbackServerContext& context) const {
    return CheckToken(context.peer(), context.client_metadata());
  }

  Hub* const hub_;
  Door* const door_;
  PackageStore* const packages_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_RPC_H_
