// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/request_rows.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/check.h"

namespace lockstep::coordinator {
namespace {

constexpr char kPrefix[] = "asked/";

}  // namespace

bool IsRequest(const Event& event) {
  return std::holds_alternative<Submitted>(event) ||
         std::holds_alternative<CancelRequested>(event) ||
         std::holds_alternative<ScaleRequested>(event) ||
         std::holds_alternative<DrainRequested>(event) ||
         std::holds_alternative<UndrainRequested>(event) ||
         std::holds_alternative<HoldRequested>(event) ||
         std::holds_alternative<TokenCreated>(event) || std::holds_alternative<TokenRevoked>(event);
}

Row RequestRow(int64_t number, const Event& request) {
  // Rows are read by key, and requests carried out in the order of their numbers.
  const std::string prefix = absl::StrFormat("%s%012d/", kPrefix, number);
  if (const auto* submit = std::get_if<Submitted>(&request)) {
    return {absl::StrCat(prefix, "submit/", submit->job_id), submit->request.SerializeAsString()};
  }
  if (const auto* cancel = std::get_if<CancelRequested>(&request)) {
    CancelJobRequest message;
    message.set_job_id(cancel->job_id);
    message.set_kill(cancel->kill);
    *message.mutable_by() = cancel->by;
    return {absl::StrCat(prefix, "cancel"), message.SerializeAsString()};
  }
  if (const auto* drain = std::get_if<DrainRequested>(&request)) {
    DrainNodeRequest message;
    message.set_node(drain->node);
    message.set_reason(drain->reason);
    message.set_user(drain->user);
    *message.mutable_by() = drain->by;
    return {absl::StrCat(prefix, "drain"), message.SerializeAsString()};
  }
  if (const auto* undrain = std::get_if<UndrainRequested>(&request)) {
    UndrainNodeRequest message;
    message.set_node(undrain->node);
    *message.mutable_by() = undrain->by;
    return {absl::StrCat(prefix, "undrain"), message.SerializeAsString()};
  }
  if (const auto* hold = std::get_if<HoldRequested>(&request)) {
    HoldJobRequest message;
    message.set_job_id(hold->job_id);
    message.set_release(hold->release);
    *message.mutable_by() = hold->by;
    return {absl::StrCat(prefix, "hold"), message.SerializeAsString()};
  }
  if (const auto* token = std::get_if<TokenCreated>(&request)) {
    return {absl::StrCat(prefix, "token"), token->record.SerializeAsString()};
  }
  if (const auto* revoke = std::get_if<TokenRevoked>(&request)) {
    RevokeTokenRequest message;
    message.set_id(revoke->id);
    *message.mutable_by() = revoke->by;
    return {absl::StrCat(prefix, "revoke"), message.SerializeAsString()};
  }
  const auto* scale = std::get_if<ScaleRequested>(&request);
  LS_CHECK(scale != nullptr);
  ScaleJobRequest message;
  message.set_job_id(scale->job_id);
  message.set_workers(scale->workers);
  *message.mutable_by() = scale->by;
  return {absl::StrCat(prefix, "scale"), message.SerializeAsString()};
}

bool IsRequestRow(const std::string& key) { return absl::StartsWith(key, kPrefix); }

absl::StatusOr<StoredRequest> ParseRequestRow(const Row& row) {
  const absl::Status damaged = absl::DataLossError(
      absl::StrCat("row '", row.key, "' of the journal is damaged or of another version"));
  const std::vector<std::string> parts = absl::StrSplit(row.key, '/');
  StoredRequest stored;
  stored.key = row.key;
  if (parts.size() < 3 || !absl::SimpleAtoi(parts[1], &stored.number)) return damaged;
  if (parts[2] == "submit" && parts.size() == 4) {
    Submitted submitted{parts[3], {}};
    if (!submitted.request.ParseFromString(row.value)) return damaged;
    stored.event = std::move(submitted);
  } else if (parts[2] == "cancel" && parts.size() == 3) {
    CancelJobRequest message;
    if (!message.ParseFromString(row.value)) return damaged;
    stored.event = CancelRequested{message.job_id(), message.kill(), message.by()};
  } else if (parts[2] == "scale" && parts.size() == 3) {
    ScaleJobRequest message;
    if (!message.ParseFromString(row.value)) return damaged;
    stored.event = ScaleRequested{message.job_id(), message.workers(), message.by()};
  } else if (parts[2] == "drain" && parts.size() == 3) {
    DrainNodeRequest message;
    if (!message.ParseFromString(row.value)) return damaged;
    stored.event = DrainRequested{message.node(), message.reason(), message.user(), message.by()};
  } else if (parts[2] == "undrain" && parts.size() == 3) {
    UndrainNodeRequest message;
    if (!message.ParseFromString(row.value)) return damaged;
    stored.event = UndrainRequested{message.node(), message.by()};
  } else if (parts[2] == "hold" && parts.size() == 3) {
    HoldJobRequest message;
    if (!message.ParseFromString(row.value)) return damaged;
    stored.event = HoldRequested{message.job_id(), message.release(), message.by()};
  } else if (parts[2] == "token" && parts.size() == 3) {
    TokenCreated created;
    if (!created.record.ParseFromString(row.value)) return damaged;
    stored.event = std::move(created);
  } else if (parts[2] == "revoke" && parts.size() == 3) {
    RevokeTokenRequest message;
    if (!message.ParseFromString(row.value)) return damaged;
    stored.event = TokenRevoked{message.id(), message.by()};
  } else {
    return damaged;
  }
  return stored;
}

}  // namespace lockstep::coordinator
