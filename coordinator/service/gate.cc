// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/gate.h"

#include "absl/strings/str_cat.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/core/access.h"
#include "coordinator/service/peer_host.h"

namespace lockstep::coordinator {

absl::StatusOr<Requester> Gate::WhoCalls(absl::string_view token) const {
  if (token.empty()) return by_socket_;
  if (door_->IsClusterToken(token)) {
    Requester who;
    who.set_role(ROLE_ADMIN);
    return who;
  }
  // A token says more than the socket: whoever shows one wants to be that, and nobody else when it
  // is taken no more.
  absl::StatusOr<Requester> who = hub_->WhoShows(token);
  if (who.ok() || !by_socket_.ok()) return who;
  return absl::UnauthenticatedError(
      absl::StrCat(who.status().message(),
                   ". Without one (--token-file, LOCKSTEP_TOKEN_FILE, LOCKSTEP_TOKEN) you are here "
                   "whom the kernel names"));
}

absl::StatusOr<Requester> Gate::Admit(absl::string_view call,
                                      const grpc::ServerContextBase& context) const {
  if (!hub_->Leads()) return absl::UnavailableError("the coordinator leads no more");
  const auto found = context.client_metadata().find(kTokenKey);
  const absl::string_view token =
      found == context.client_metadata().end()
          ? absl::string_view()
          : absl::string_view(found->second.data(), found->second.size());
  const std::string peer = context.peer();
  door_->HasCalled(peer);
  absl::StatusOr<Requester> who = WhoCalls(token);
  if (!who.ok()) return who;
  who->set_peer(ParsePeer(peer).host);
  door_->HasProven(peer);
  if (absl::Status may = CheckCall(call, *who); !may.ok()) {
    audit_->NoteRepeated({*who, std::string(call), "", ""}, may);
    return may;
  }
  return *std::move(who);
}

}  // namespace lockstep::coordinator
