// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/access.h"

#include <grpcpp/client_context.h>

#include <string>

#include "common/status.h"
#include "coordinator/client/call.h"
#include "coordinator/client/renewal.h"
#include "coordinator/client/route.h"
#include "proto/access.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

template <typename Request, typename Response>
absl::StatusOr<Response> Call(const ClientOptions& options,
                              grpc::Status (Access::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                              const Request& request, absl::Duration timeout,
                              const CallRules& rules = {}) {
  Route route(options);
  Response response;
  const auto once = [&](const auto& channel, grpc::ClientContext* context) {
    response.Clear();
    return ((*Access::NewStub(channel)).*method)(context, request, &response);
  };
  LS_RETURN_IF_ERROR(CallUntilAnswered(options, route, timeout, rules, once));
  return response;
}

}  // namespace

absl::StatusOr<CreateTokenResponse> CreateToken(const ClientOptions& options,
                                                const CreateTokenRequest& request,
                                                absl::Duration timeout) {
  CallRules rules;
  rules.once = true;  // a second time would leave a token that nobody has
  return Call(options, &Access::Stub::CreateToken, request, timeout, rules);
}

absl::StatusOr<ListTokensResponse> ListTokens(const ClientOptions& options,
                                              absl::Duration timeout) {
  return Call(options, &Access::Stub::ListTokens, ListTokensRequest(), timeout);
}

absl::StatusOr<RevokeTokenResponse> RevokeToken(const ClientOptions& options,
                                                const RevokeTokenRequest& request,
                                                absl::Duration timeout) {
  absl::StatusOr<RevokeTokenResponse> revoked =
      Call(options, &Access::Stub::RevokeToken, request, timeout);
  if (absl::IsNotFound(revoked.status()) && IsUnanswered(revoked.status())) {
    return Annotate(revoked.status(),
                    "the call broke off, and may have revoked the token; made again");
  }
  return revoked;
}

absl::StatusOr<Requester> WhoAmI(const ClientOptions& options, absl::Duration timeout) {
  return Call(options, &Access::Stub::WhoAmI, WhoAmIRequest(), timeout);
}

absl::StatusOr<std::optional<std::string>> RenewToken(const ClientOptions& options, bool whatever,
                                                      absl::Duration timeout) {
  LS_ASSIGN_OR_RETURN(RenewTokenRequest request, RenewalOf(options));
  if (whatever) request.clear_authorities_hash();
  LS_ASSIGN_OR_RETURN(const RenewTokenResponse response,
                      Call(options, &Access::Stub::RenewToken, request, timeout));
  return Renewed(options, response);
}

}  // namespace lockstep::coordinator
