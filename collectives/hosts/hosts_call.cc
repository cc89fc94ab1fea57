// SPDX-License-Identifier: Apache-2.0
#include "collectives/hosts/hosts_call.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep {

HostsCall::HostsCall(HostsContext* context, const Operation& operation, const void* payload,
                     size_t bytes)
    : context_(context),
      operation_(operation),
      payload_(payload),
      bytes_(bytes),
      done_telling_(context->hosts.host.size(), false),
      heard_kind_(static_cast<size_t>(context->hosts.hosts()), FrameKind::kCall),
      heard_host_(heard_kind_.size(), false),
      heard_call_(heard_kind_.size()) {
  for (const int rank : context_->mesh->ranks()) tellings_ += Tells(rank) ? 1 : 0;
  heard_host_[static_cast<size_t>(context_->my_host())] = true;
  heard_ = 1;
}

void HostsCall::TellDifferent(const std::vector<Operation>& of_ranks) {
  own_calls_ = of_ranks;
  payload_ = own_calls_.data();
  bytes_ = own_calls_.size() * sizeof(Operation);
  kind_ = FrameKind::kCalls;
}

void HostsCall::SkipCalls() {
  agreed_ = true;
  told_ = tellings_;
  heard_ = hosts().hosts();
  std::fill(heard_host_.begin(), heard_host_.end(), true);
  std::fill(done_telling_.begin(), done_telling_.end(), true);
}

bool HostsCall::Tells(int rank) const {
  return hosts().Teller(context_->my_host(), rank) == self();
}

bool HostsCall::Sending() const {
  for (const int rank : context_->mesh->ranks()) {
    const Link& link = *context_->mesh->link(rank);
    if (link.open() && link.sending()) return true;
  }
  return false;
}

bool HostsCall::Next(int rank, OutgoingFrame* frame) {
  if (!done_telling_[static_cast<size_t>(rank)]) {
    done_telling_[static_cast<size_t>(rank)] = true;
    if (Tells(rank)) {
      ++told_;
      frame->header = FrameHeader{};
      frame->header.kind = kind_;
      frame->header.operation = operation_;
      frame->header.bytes = static_cast<uint32_t>(bytes_);
      frame->payload = payload_;
      return true;
    }
  }
  return NextData(rank, frame);
}

absl::StatusOr<char*> HostsCall::Place(int rank, const FrameHeader& header) {
  if (header.kind == FrameKind::kData) {
    // Of the next call, when this one has all that it needs from there.
    return agreed_ && header.operation == operation_ ? PlaceData(rank, header) : nullptr;
  }
  const auto host = static_cast<size_t>(hosts().host_of(rank));
  if (heard_host_[host]) return nullptr;
  std::vector<char>& place = context_->heard[host];
  place.resize(std::max<size_t>(header.bytes, 1));
  return place.data();
}

absl::Status HostsCall::Arrived(int rank, const FrameHeader& header) {
  if (header.kind == FrameKind::kData) return ArrivedData(rank, header);
  const auto host = static_cast<size_t>(hosts().host_of(rank));
  heard_host_[host] = true;
  heard_kind_[host] = header.kind;
  heard_call_[host] = header.operation;
  context_->heard[host].resize(header.bytes);
  context_->mesh->link(rank)->heard = header.operation;
  if (++heard_ < hosts().hosts()) return absl::OkStatus();
  return Compare();
}

absl::Status HostsCall::Compare() {
  bool same = kind_ == FrameKind::kCall;
  for (int h = 0; h < hosts().hosts(); ++h) {
    const auto host = static_cast<size_t>(h);
    if (h == context_->my_host()) continue;
    same &= heard_kind_[host] == FrameKind::kCall && heard_call_[host] == operation_;
  }
  if (same) {
    agreed_ = true;
    context_->recorder->Started();
    return absl::OkStatus();
  }
  std::vector<Operation> calls(hosts().host.size(), operation_);
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    const auto host = static_cast<size_t>(hosts().host[rank]);
    const auto index = static_cast<size_t>(hosts().index[rank]);
    if (static_cast<int>(host) == context_->my_host()) {
      if (index < own_calls_.size()) calls[rank] = own_calls_[index];
      continue;
    }
    calls[rank] = heard_call_[host];
    const std::vector<char>& payload = context_->heard[host];
    if (heard_kind_[host] != FrameKind::kCalls) continue;
    if (payload.size() != sizeof(Operation) * static_cast<size_t>(hosts().size(hosts().host[rank])))
      return absl::InternalError("a host's calls are not one for each of its ranks");
    std::memcpy(&calls[rank], payload.data() + index * sizeof(Operation), sizeof(Operation));
  }
  return CheckSameCall(calls);
}

bool HostsCall::WaitsFor(int rank) const {
  if (!done_telling_[static_cast<size_t>(rank)] && Tells(rank)) return true;
  const Link& link = *context_->mesh->link(rank);
  if (link.open() && link.sending()) return true;
  const int host = hosts().host_of(rank);
  if (!heard_host_[static_cast<size_t>(host)]) return hosts().Teller(host, self()) == rank;
  return WaitsForData(rank);
}

absl::Status HostsCall::Unexpected(int rank, const FrameHeader& header) const {
  return absl::InternalError(absl::StrCat(
      ToString(operation_), ": ", context_->mesh->name(rank), " sends ", header.bytes,
      " bytes for place ", header.offset, ", part ", header.part, ", which are not due"));
}

}  // namespace lockstep
