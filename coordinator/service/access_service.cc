// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/access_service.h"

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/random_hex.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/token.h"
#include "coordinator/core/access.h"
#include "coordinator/core/context.h"
#include "coordinator/core/tokens.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr size_t kIdBytes = 6;

}  // namespace

grpc::ServerUnaryReactor* AccessService::CreateToken(grpc::CallbackServerContext* context,
                                                     const CreateTokenRequest* request,
                                                     CreateTokenResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Requester> who = gate_->Admit("Access/CreateToken", *context);
  const std::string secret = RandomHex(kSecretBytes);
  const absl::StatusOr<std::string> token = TokenOf({secret, authority_});
  if (!who.ok() || !token.ok()) {
    reactor->Finish(ToGrpc(who.ok() ? token.status() : who.status()));
    return reactor;
  }
  TokenCreated event;
  event.record.set_sha256(TokenHash(secret));
  *event.record.mutable_by() = *who;
  TokenInfo& info = *event.record.mutable_info();
  info.set_id(RandomHex(kIdBytes));
  info.set_user(request->user());
  info.set_role(request->role());
  info.set_note(request->note());
  if (request->has_valid_for()) {
    *info.mutable_expires() = ToProto(Clock::Real()->Now() + FromProto(request->valid_for()));
  }
  AuditEntry entry{*who, "create_token", info.id(),
                   absl::StrCat(RoleName(info.role()), " for ", info.user())};
  hub_->Post(event, [=, audit = audit_](Hub::Reply reply) {
    audit->Note(entry, reply.status);
    if (reply.status.ok()) {
      *response->mutable_info() = event.record.info();
      response->set_token(*token);
    }
    reactor->Finish(ToGrpc(reply.status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* AccessService::ListTokens(grpc::CallbackServerContext* context,
                                                    const ListTokensRequest*,
                                                    ListTokensResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Requester> who = gate_->Admit("Access/ListTokens", *context);
  if (who.ok()) *response = hub_->Tokens(*who);
  reactor->Finish(ToGrpc(who.status()));
  return reactor;
}

grpc::ServerUnaryReactor* AccessService::RevokeToken(grpc::CallbackServerContext* context,
                                                     const RevokeTokenRequest* request,
                                                     RevokeTokenResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Requester> who = gate_->Admit("Access/RevokeToken", *context);
  if (!who.ok()) {
    reactor->Finish(ToGrpc(who.status()));
    return reactor;
  }
  const AuditEntry entry{*who, "revoke_token", request->id(), ""};
  hub_->Post(TokenRevoked{request->id(), *who}, [=, audit = audit_](Hub::Reply reply) {
    audit->Note(entry, reply.status);
    reactor->Finish(ToGrpc(reply.status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* AccessService::WhoAmI(grpc::CallbackServerContext* context,
                                                const WhoAmIRequest*, Requester* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Requester> who = gate_->Admit("Access/WhoAmI", *context);
  if (who.ok()) *response = *who;
  reactor->Finish(ToGrpc(who.status()));
  return reactor;
}

}  // namespace lockstep::coordinator
