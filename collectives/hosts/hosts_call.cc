// SPDX-License-Identifier: Apache-2.0
#include "collectives/hosts/hosts_call.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {

HostsCall::HostsCall(HostsContext* context, const Operation& operation, const void* payload,
                     size_t bytes)
    : context_(context), rounds_(1) {
  for (const int rank : context_->mesh->ranks()) tellings_ += Tells(rank) ? 1 : 0;
  const auto hosts = static_cast<size_t>(context->hosts.hosts());
  Round& round = rounds_.front();
  round.done_telling.resize(context->hosts.host.size(), false);
  round.heard_as.resize(hosts, FrameKind::kData);
  round.heard.resize(hosts);
  round.heard_as[static_cast<size_t>(context_->my_host())] = FrameKind::kCall;
  round.hosts_heard = 1;
  round.operation = operation;
  round.known = true;
  round.payload = payload;
  round.bytes = bytes;
}

void HostsCall::TellDifferent(const std::vector<Operation>& of_ranks) {
  own_calls_ = of_ranks;
  Round& round = rounds_.back();
  round.payload = own_calls_.data();
  round.bytes = own_calls_.size() * sizeof(Operation);
  round.kind = FrameKind::kCalls;
}

void HostsCall::SkipCalls() {
  Round& round = rounds_.front();
  round.agreed = true;
  round.told = tellings_;
  round.hosts_heard = hosts().hosts();
  std::fill(round.heard_as.begin(), round.heard_as.end(), FrameKind::kCall);
  std::fill(round.done_telling.begin(), round.done_telling.end(), true);
}

void HostsCall::AwaitEnd() {
  LS_CHECK_EQ(rounds_.size(), 1u);
  LS_CHECK_EQ(rounds_.front().bytes, 0u);
  Round second = rounds_.front();
  second.known = false;
  rounds_.push_back(std::move(second));
}

absl::Status HostsCall::EndsWith(const Operation& operation) {
  LS_CHECK_EQ(rounds_.size(), 2u);
  rounds_[1].operation = operation;
  rounds_[1].known = true;
  return Compare(&rounds_[1]);
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

bool HostsCall::AllAgreed() const {
  return std::all_of(rounds_.begin(), rounds_.end(), [this](const Round& round) {
    return round.agreed && round.told == tellings_;
  });
}

bool HostsCall::Next(int rank, OutgoingFrame* frame) {
  for (Round& round : rounds_) {
    if (!round.known || round.done_telling[static_cast<size_t>(rank)]) continue;
    round.done_telling[static_cast<size_t>(rank)] = true;
    if (!Tells(rank)) continue;
    ++round.told;
    frame->header = FrameHeader{};
    frame->header.kind = round.kind;
    frame->header.operation = round.operation;
    frame->header.bytes = static_cast<uint32_t>(round.bytes);
    frame->payload = round.payload;
    return true;
  }
  return NextData(rank, frame);
}

HostsCall::Round* HostsCall::NextOf(size_t host) {
  const auto next = std::find_if(rounds_.begin(), rounds_.end(), [host](const Round& round) {
    return round.heard_as[host] == FrameKind::kData;
  });
  return next == rounds_.end() ? nullptr : &*next;
}

absl::StatusOr<char*> HostsCall::Place(int rank, const FrameHeader& header) {
  if (header.kind == FrameKind::kData) {
    // Of the next call, when this one has all that it needs from there.
    const Round& first = rounds_.front();
    return first.agreed && header.operation == first.operation ? PlaceData(rank, header) : nullptr;
  }
  const auto host = static_cast<size_t>(hosts().host_of(rank));
  if (NextOf(host) == nullptr) return nullptr;
  std::vector<char>& place = context_->heard[host];
  place.resize(std::max<size_t>(header.bytes, 1));
  return place.data();
}

absl::Status HostsCall::Arrived(int rank, const FrameHeader& header) {
  if (header.kind == FrameKind::kData) return ArrivedData(rank, header);
  const auto host = static_cast<size_t>(hosts().host_of(rank));
  Round* const round = NextOf(host);
  LS_CHECK(round != nullptr);
  round->heard_as[host] = header.kind;
  round->heard[host] = header.operation;
  ++round->hosts_heard;
  context_->heard[host].resize(header.bytes);
  context_->mesh->link(rank)->heard = header.operation;
  return Compare(round);
}

absl::Status HostsCall::Compare(Round* round) {
  if (!round->known || round->hosts_heard < hosts().hosts()) return absl::OkStatus();
  bool same = round->kind == FrameKind::kCall;
  for (int h = 0; h < hosts().hosts(); ++h) {
    const auto host = static_cast<size_t>(h);
    if (h == context_->my_host()) continue;
    same &= round->heard_as[host] == FrameKind::kCall && round->heard[host] == round->operation;
  }
  if (same) {
    round->agreed = true;
    // What only begins has no record that is open.
    if (round == &rounds_.back()) context_->recorder->Started();
    return absl::OkStatus();
  }
  LS_ASSIGN_OR_RETURN(const std::vector<Operation> calls, CallsOf(*round));
  return CheckSameCall(calls);
}

absl::StatusOr<std::vector<Operation>> HostsCall::CallsOf(const Round& round) const {
  std::vector<Operation> calls(hosts().host.size(), round.operation);
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    const auto host = static_cast<size_t>(hosts().host[rank]);
    const auto index = static_cast<size_t>(hosts().index[rank]);
    if (static_cast<int>(host) == context_->my_host()) {
      if (round.kind == FrameKind::kCalls) calls[rank] = own_calls_[index];
      continue;
    }
    calls[rank] = round.heard[host];
    const std::vector<char>& payload = context_->heard[host];
    if (round.heard_as[host] != FrameKind::kCalls) continue;
    if (payload.size() != sizeof(Operation) * static_cast<size_t>(hosts().size(hosts().host[rank])))
      return absl::InternalError("a host's calls are not one for each of its ranks");
    std::memcpy(&calls[rank], payload.data() + index * sizeof(Operation), sizeof(Operation));
  }
  return calls;
}

bool HostsCall::WaitsFor(int rank) const {
  const Link& link = *context_->mesh->link(rank);
  if (link.open() && link.sending()) return true;
  const auto host = static_cast<size_t>(hosts().host_of(rank));
  const bool told_by_it = hosts().Teller(static_cast<int>(host), self()) == rank;
  for (const Round& round : rounds_) {
    if (!round.known) continue;
    if (!round.done_telling[static_cast<size_t>(rank)] && Tells(rank)) return true;
    if (round.heard_as[host] != FrameKind::kData) continue;
    // Nothing else of it moves before its host has spoken.
    if (told_by_it || &round == &rounds_.front()) return told_by_it;
  }
  return WaitsForData(rank);
}

absl::Status HostsCall::Unexpected(int rank, const FrameHeader& header) const {
  return absl::InternalError(absl::StrCat(
      ToString(operation()), ": ", context_->mesh->name(rank), " sends ", header.bytes,
      " bytes for place ", header.offset, ", part ", header.part, ", which are not due"));
}

}  // namespace lockstep
