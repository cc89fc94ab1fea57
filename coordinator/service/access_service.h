// SPDX-License-Identifier: Apache-2.0
// The service Access (proto/access.proto): tokens are made, listed and revoked.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_ACCESS_SERVICE_H_
#define LOCKSTEP_COORDINATOR_SERVICE_ACCESS_SERVICE_H_

#include <string>
#include <utility>

#include "coordinator/service/audit.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/hub.h"
#include "proto/access.grpc.pb.h"

namespace lockstep::coordinator {

class AccessService : public Access::CallbackService {
 public:
  // All of them outlive the service. `authority`: what tokens carry so that their holders speak
  // TLS; empty: nothing.
  AccessService(Hub* hub, const Gate* gate, Audit* audit, std::string authority)
      : hub_(hub), gate_(gate), audit_(audit), authority_(std::move(authority)) {}

  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context,
                                        const CreateTokenRequest* request,
                                        CreateTokenResponse* response) override;
  grpc::ServerUnaryReactor* ListTokens(grpc::CallbackServerContext* context,
                                       const ListTokensRequest* request,
                                       ListTokensResponse* response) override;
  grpc::ServerUnaryReactor* RevokeToken(grpc::CallbackServerContext* context,
                                        const RevokeTokenRequest* request,
                                        RevokeTokenResponse* response) override;
  grpc::ServerUnaryReactor* WhoAmI(grpc::CallbackServerContext* context,
                                   const WhoAmIRequest* request, Requester* response) override;

 private:
  Hub* const hub_;
  const Gate* const gate_;
  Audit* const audit_;
  const std::string authority_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_ACCESS_SERVICE_H_
