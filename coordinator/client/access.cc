// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/access.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status.h"
#include "coordinator/client/channel.h"
#include "coordinator/client/default_address.h"
#include "coordinator/client/diagnosis.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/renewal.h"
#include "coordinator/client/route.h"
#include "proto/access.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

// Making a token twice would leave one that nobody has, so the call is made once.
template <typename Request, typename Response>
absl::StatusOr<Response> Call(const ClientOptions& options,
                              grpc::Status (Access::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                              const Request& request, absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  const auto stub = Access::NewStub(Route(options).ToLeader(timeout / 2));
  grpc::ClientContext context;
  ShowToken(options, &context);
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoNanoseconds(deadline - Clock::Real()->Now()));
  Response response;
  const grpc::Status status = ((*stub).*method)(&context, request, &response);
  if (status.ok()) return response;
  if (NobodyServed(status)) {
    ClientOptions one = options;
    for (std::string& address : AddressesOf(options.address)) {
      one.address = std::move(address);
      LS_RETURN_IF_ERROR(ExplainConnection(one, deadline - Clock::Real()->Now()));
    }
    const std::string said =
        absl::StartsWith(status.error_message(), "the coordinator ") ? status.error_message() : "";
    return absl::UnavailableError(absl::StrCat("no coordinator answers at ", options.address,
                                               said.empty() ? "" : ": ", said));
  }
  return FromGrpc(status);
}

}  // namespace

absl::StatusOr<CreateTokenResponse> CreateToken(const ClientOptions& options,
                                                const CreateTokenRequest& request,
                                                absl::Duration timeout) {
  return Call(options, &Access::Stub::CreateToken, request, timeout);
}

absl::StatusOr<ListTokensResponse> ListTokens(const ClientOptions& options,
                                              absl::Duration timeout) {
  return Call(options, &Access::Stub::ListTokens, ListTokensRequest(), timeout);
}

absl::StatusOr<RevokeTokenResponse> RevokeToken(const ClientOptions& options,
                                                const RevokeTokenRequest& request,
                                                absl::Duration timeout) {
  return Call(options, &Access::Stub::RevokeToken, request, timeout);
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
