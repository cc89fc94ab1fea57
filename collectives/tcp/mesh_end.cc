// SPDX-License-Identifier: Apache-2.0
// How a Mesh ends: goodbyes, connections that are lost, and what is said of them.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group_end.h"
#include "collectives/tcp/mesh.h"
#include "common/clock.h"
#include "common/status.h"

namespace lockstep {
namespace {

// How long a mesh that goes waits, from when it left on, until the peers have the goodbye: where
// another generation follows, and where none does. Peers that are gone without a word are waited
// for in vain.
constexpr absl::Duration kLinger = absl::Seconds(1);
constexpr absl::Duration kLongLinger = absl::Seconds(10);
constexpr absl::Duration kLookEach = absl::Seconds(1);
// Retransmissions or probes without an answer, besides the time that they took.
constexpr int kUnanswered = 3;

}  // namespace

absl::Status Mesh::OnGoodbye(Link* link, const Goodbye& goodbye) {
  link->said_goodbye = true;
  link->left_after = goodbye.completed;
  const int rank = link->rank();
  link->Close();
  if (goodbye.code == absl::StatusCode::kOk) return absl::OkStatus();
  if (goodbye.end.cause == EndCause::kMismatch) {
    return WithEnd(absl::FailedPreconditionError(goodbye.text), goodbye.end);
  }
  // What it says of a third is handed on: whoever only waited for that one is not to blame.
  const bool of_third = goodbye.end.lost_rank() >= 0 && goodbye.end.rank != options_.self;
  GroupEnd heard = goodbye.end;
  heard.hearsay = true;
  if (goodbye.code == absl::StatusCode::kDeadlineExceeded) {
    return WithEnd(
        absl::DeadlineExceededError(absl::StrCat(goodbye.text, " (says ", name(rank), ")")),
        of_third ? heard : GroupEnd{EndCause::kPeerLeft, rank});
  }
  if (of_third || goodbye.end.cause == EndCause::kDamaged) {
    return WithEnd(absl::AbortedError(absl::StrCat(goodbye.text, " (says ", name(rank), ")")),
                   heard);
  }
  return WithEnd(absl::AbortedError(absl::StrCat(name(rank), " has left generation ",
                                                 options_.generation, ": ", goodbye.text)),
                 {EndCause::kPeerLeft, rank});
}

// Frames that wait for their turn may stand before the goodbye, so it is looked for behind them.
absl::Status Mesh::LookForGoodbye(Link* link) {
  if (link->last_words_read) return absl::OkStatus();
  link->last_words_read = true;
  link->TakeRest();
  const std::optional<Goodbye> goodbye = link->LastWords();
  if (!goodbye.has_value()) return Lost(link, link->HowItEnded());
  return goodbye->code == absl::StatusCode::kOk ? absl::OkStatus() : OnGoodbye(link, *goodbye);
}

absl::Status Mesh::Explain(Link* link, const absl::Status& status) {
  if (absl::IsUnavailable(status)) {
    link->StopSending();
    return LookForGoodbye(link);
  }
  return Lost(link, status);
}

absl::Status Mesh::Lost(Link* link, const absl::Status& status) {
  const int rank = link->rank();
  if (absl::IsDataLoss(status)) {
    // Nothing more is read; the goodbye still goes.
    return WithEnd(absl::AbortedError(absl::StrCat(
                       "between ", name(rank), " and ", name(options_.self), " in generation ",
                       options_.generation, ": ", std::string(status.message()),
                       "; the connection is not trusted any more")),
                   {EndCause::kDamaged, rank});
  }
  link->Close();
  LS_RETURN_IF_ERROR(options_.alive());
  if (absl::IsUnavailable(status)) {
    return WithEnd(
        absl::AbortedError(absl::StrCat(name(rank), " died: its connection to ",
                                        name(options_.self), " was closed without a goodbye")),
        {EndCause::kPeerDied, rank});
  }
  return WithEnd(
      absl::AbortedError(absl::StrCat(name(rank), " cannot be reached from ", name(options_.self),
                                      ": ", std::string(status.message()))),
      {EndCause::kUnreachable, rank});
}

// TCP_USER_TIMEOUT would also cut a peer off that is alive and slow to read, so the kernel is
// asked.
absl::Status Mesh::CheckSilence(absl::Time now) {
  if (now < next_check_) return absl::OkStatus();
  next_check_ = now + kLookEach;
  for (const int rank : ranks_) {
    Link* const each = link(rank);
    if (!each->open()) continue;
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(each->socket(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    const bool unanswered = std::max<int>(info.tcpi_retransmits, info.tcpi_probes) >= kUnanswered;
    const absl::Duration silent = absl::Milliseconds(info.tcpi_last_ack_recv);
    if (!unanswered || silent < options_.silence) continue;
    return Fail(Lost(each, absl::DeadlineExceededError(
                               absl::StrCat("no answer for ", absl::FormatDuration(silent)))));
  }
  return absl::OkStatus();
}

bool Mesh::LeftAfter(const absl::Status& status, int64_t call) const {
  const GroupEnd end = EndOf(status);
  return end.cause == EndCause::kPeerLeft && end.rank >= 0 && link(end.rank) != nullptr &&
         link(end.rank)->left_after >= call;
}

void Mesh::Leave(const absl::Status& status) {
  if (std::exchange(left_, true)) return;
  if (failed_.ok()) {
    failed_ = status.ok() ? absl::AbortedError("this rank has left the generation") : status;
  }
  left_at_ = Clock::Real()->Now();
  std::vector<Link*> links;
  for (const int rank : ranks_) links.push_back(link(rank));
  const GroupEnd end = EndOf(status);
  farewells_.Send({status.code(), end, std::string(status.message()), completed_}, links,
                  end.lost_rank());
}

Mesh::~Mesh() {
  Leave(absl::OkStatus());
  // Who leaves for a reason that ends the job is in no hurry.
  const bool hurries = absl::IsAborted(failed_) || absl::IsDeadlineExceeded(failed_);
  farewells_.AwaitTaken(left_at_ + (hurries ? kLinger : kLongLinger));
}

}  // namespace lockstep
