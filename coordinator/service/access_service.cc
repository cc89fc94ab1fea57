// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/access_service.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/token.h"
#include "coordinator/core/access.h"
#include "coordinator/core/context.h"
#include "coordinator/core/tokens.h"
#include "coordinator/service/wall_clock.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr size_t kIdBytes = 6;
constexpr const char* kCreateToken = "Access/CreateToken";
constexpr const char* kRevokeToken = "Access/RevokeToken";

// Returns what the handshake of the caller's connection has found out; empty: nothing.
std::string Property(const grpc::CallbackServerContext& context, const std::string& name) {
  const std::shared_ptr<const grpc::AuthContext> found = context.auth_context();
  if (found == nullptr) return "";
  const std::vector<grpc::string_ref> values = found->FindPropertyValues(name);
  return values.empty() ? "" : std::string(values[0].data(), values[0].size());
}

}  // namespace

absl::Status AccessService::NoteAsked(const AuditEntry& entry, const char* call) {
  absl::Status noted = audit_->NoteAsked(entry, call);
  if (noted.ok()) return noted;
  return Annotate(noted, "the coordinator makes and revokes no tokens that its audit lacks");
}

grpc::ServerUnaryReactor* AccessService::CreateToken(grpc::CallbackServerContext* context,
                                                     const CreateTokenRequest* request,
                                                     CreateTokenResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Requester> who = gate_->Admit(kCreateToken, *context);
  if (!who.ok()) {
    reactor->Finish(ToGrpc(who.status()));
    return reactor;
  }
  const std::string secret = RandomHex(kSecretBytes);
  const absl::Time now = WallClock()->Now();
  const absl::Time ends =
      request->has_valid_for() ? now + FromProto(request->valid_for()) : absl::InfiniteFuture();
  const absl::StatusOr<std::string> token =
      issuer_->TokenFor(secret, NameOfToken(secret), ends, now);
  if (!token.ok()) {
    reactor->Finish(ToGrpc(token.status()));
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
  *info.mutable_created() = ToProto(now);
  if (request->has_valid_for()) *info.mutable_expires() = ToProto(ends);
  AuditEntry entry{*who, "create_token", info.id(),
                   absl::StrCat(RoleName(info.role()), " for ", info.user())};
  if (absl::Status noted = NoteAsked(entry, kCreateToken); !noted.ok()) {
    reactor->Finish(ToGrpc(noted));
    return reactor;
  }
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
  const absl::StatusOr<Requester> who = gate_->Admit(kRevokeToken, *context);
  if (!who.ok()) {
    reactor->Finish(ToGrpc(who.status()));
    return reactor;
  }
  const AuditEntry entry{*who, "revoke_token", request->id(), ""};
  // What is not the caller's to revoke is refused, and no restore may take it for revoked.
  const ListTokensResponse within_reach = hub_->Tokens(*who);
  const bool may = std::any_of(within_reach.tokens().begin(), within_reach.tokens().end(),
                               [&](const TokenInfo& token) { return token.id() == request->id(); });
  if (absl::Status noted = may ? NoteAsked(entry, kRevokeToken) : absl::OkStatus(); !noted.ok()) {
    reactor->Finish(ToGrpc(noted));
    return reactor;
  }
  hub_->Post(TokenRevoked{request->id(), *who}, [=, audit = audit_](Hub::Reply reply) {
    AuditEntry done = entry;
    // Without a line before it this is no answer to an earlier request, which may have been carried
    // out.
    if (!may && !reply.status.ok()) done.what = kRevokeToken;
    audit->Note(done, reply.status);
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

grpc::ServerUnaryReactor* AccessService::RenewToken(grpc::CallbackServerContext* context,
                                                    const RenewTokenRequest* request,
                                                    RenewTokenResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<Requester> who = gate_->Admit("Access/RenewToken", *context);
  absl::Status status = who.status();
  if (status.ok()) {
    absl::StatusOr<std::string> token = Renew(*context, *who, request->authorities_hash());
    status = token.status();
    if (status.ok() && !token->empty()) {
      response->set_token(*std::move(token));
      audit_->NoteRepeated({*who, "renew_token", who->token_id(), ""}, status);
    }
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// The caller's token anew; empty: that of now will do.
absl::StatusOr<std::string> AccessService::Renew(const grpc::CallbackServerContext& context,
                                                 const Requester& who,
                                                 const std::string& authorities_hash) {
  const auto shown = context.client_metadata().find(kTokenKey);
  if (shown == context.client_metadata().end() || !issuer_->IssuesCertificates()) return "";
  const absl::string_view secret(shown->second.data(), shown->second.size());
  const absl::Time now = WallClock()->Now();
  const std::string certificate = Property(context, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  // A worker passes the handshake as a part of its node.
  const std::string name = who.role() == ROLE_WORKER ? Property(context, GRPC_X509_CN_PROPERTY_NAME)
                                                     : NameOfToken(secret);
  const absl::Time ends = hub_->EndOfToken(name).value_or(absl::InfiniteFuture());
  if (name.empty()) return "";
  if (!authorities_hash.empty()) {
    LS_ASSIGN_OR_RETURN(const bool current,
                        issuer_->IsCurrent(certificate, authorities_hash, ends, now));
    if (current) return "";
  }
  return issuer_->TokenFor(secret, name, ends, now);
}

}  // namespace lockstep::coordinator
