// SPDX-License-Identifier: Apache-2.0
// The service Access (proto/access.proto): tokens are made, listed, revoked and
// given new certificates.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_ACCESS_SERVICE_H_
#define LOCKSTEP_COORDINATOR_SERVICE_ACCESS_SERVICE_H_

#include "coordinator/service/audit.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/hub.h"
#include "coordinator/service/token_issuer.h"
#include "proto/access.grpc.pb.h"

namespace lockstep::coordinator {

class AccessService : public Access::CallbackService {
 public:
  // All of them outlive the service.
  AccessService(Hub* hub, const Gate* gate, Audit* audit, const TokenIssuer* issuer)
      : hub_(hub), gate_(gate), audit_(audit), issuer_(issuer) {}

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
  grpc::ServerUnaryReactor* RenewToken(grpc::CallbackServerContext* context,
                                       const RenewTokenRequest* request,
                                       RenewTokenResponse* response) override;

 private:
  // Has the request in the audit before it is carried out. Blocks as Audit::NoteAsked, also in what
  // it does with `call`. Errors: Unavailable: it is not to be carried out.
  absl::Status NoteAsked(const AuditEntry& entry, const char* call);
  absl::StatusOr<std::string> Renew(const grpc::CallbackServerContext& context,
                                    const Requester& who, const std::string& authorities_hash);

  Hub* const hub_;
  const Gate* const gate_;
  Audit* const audit_;
  const TokenIssuer* const issuer_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_ACCESS_SERVICE_H_
