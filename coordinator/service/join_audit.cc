// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/join_audit.h"

#include <utility>

namespace lockstep::coordinator {
namespace {

absl::StatusCode CodeOf(Rejected::Kind kind) {
  switch (kind) {
    case Rejected::REVOKED:
    case Rejected::OTHER_OWNER:
      return absl::StatusCode::kPermissionDenied;
    case Rejected::NODE_TAKEN:
      return absl::StatusCode::kAlreadyExists;
    case Rejected::REPLACED:
      return absl::StatusCode::kAborted;
    case Rejected::MALFORMED:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kFailedPrecondition;
  }
}

}  // namespace

void JoinAudit::Said(const AgentMessage& message) {
  if (!message.has_hello()) return;
  Note(absl::CancelledError("it said hello again before it was answered"));
  absl::MutexLock lock(&mu_);
  asks_ = AuditEntry{who_, "join", message.hello().node_id(), message.hello().host()};
}

void JoinAudit::Told(const AgentCommand& command) {
  const Rejected& rejected = command.rejected();
  Note(command.has_rejected() ? absl::Status(CodeOf(rejected.kind()), rejected.reason())
                              : absl::OkStatus());
}

void JoinAudit::Ended() {
  Note(absl::CancelledError("its connection ended before it was answered"));
}

void JoinAudit::Note(const absl::Status& outcome) {
  std::optional<AuditEntry> asked;
  {
    absl::MutexLock lock(&mu_);
    asked.swap(asks_);
  }
  if (asked) audit_->Note(*asked, outcome);
}

}  // namespace lockstep::coordinator
