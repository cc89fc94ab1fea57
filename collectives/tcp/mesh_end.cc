// SPDX-License-Identifier: Apache-2.0
// How a Mesh ends: goodbyes, connections that are lost, and what is said of them.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
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

constexpr absl::Duration kLinger = absl::Milliseconds(250);
constexpr absl::Duration kLookEach = absl::Seconds(1);
// Retransmissions or probes without an answer, besides the time that they took.
constexpr int kUnanswered = 3;

// Takes in what a connection has and forgets it: this rank has its own reason to leave, and the
// peer may have to end a frame before its goodbye.
void Drain(int socket) {
  char nothing[1 << 16];
  while (::recv(socket, nothing, sizeof(nothing), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace

absl::Status Mesh::OnGoodbye(Link* link, const Goodbye& goodbye) {
  link->said_goodbye = true;
  const int rank = link->rank();
  link->Close();
  if (goodbye.code == absl::StatusCode::kOk) return absl::OkStatus();
  if (goodbye.end.cause == EndCause::kMismatch) {
    return WithEnd(absl::FailedPreconditionError(goodbye.text), goodbye.end);
  }
  // What it says of a third is handed on: whoever only waited for that one is not to blame.
  const bool of_third = goodbye.end.lost_rank() >= 0 && goodbye.end.rank != options_.self;
  if (goodbye.code == absl::StatusCode::kDeadlineExceeded) {
    return WithEnd(
        absl::DeadlineExceededError(absl::StrCat(goodbye.text, " (says ", name(rank), ")")),
        of_third ? goodbye.end : GroupEnd{EndCause::kPeerLeft, rank});
  }
  if (of_third || goodbye.end.cause == EndCause::kDamaged) {
    return WithEnd(absl::AbortedError(absl::StrCat(goodbye.text, " (says ", name(rank), ")")),
                   goodbye.end);
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

void Mesh::Leave(const absl::Status& status) {
  if (std::exchange(left_, true)) return;
  if (failed_.ok()) {
    failed_ = status.ok() ? absl::AbortedError("this rank has left the generation") : status;
  }
  const absl::Time until = Clock::Real()->Now() + kLinger;
  const Goodbye goodbye{status.code(), EndOf(status), std::string(status.message())};
  std::string text;
  const FrameHeader header = GoodbyeFrame(goodbye, &text);
  for (const int rank : ranks_) {
    if (link(rank)->open()) link(rank)->Queue(header, text);
  }
  // What was begun has to be ended first. The peer may not be reading; one that leaves too does.
  while (true) {
    bool left = false;
    for (const int rank : ranks_) {
      Link* const each = link(rank);
      bool moved = false;
      if (each->open()) Drain(each->socket());
      while (each->open() && (each->sending() || each->HasQueued())) {
        if (!each->sending()) each->BeginQueued();
        each->NoteWritable();
        if (!each->Write(&moved).ok()) each->Close();
        if (each->open() && each->sending()) break;
      }
      left |= each->open() && each->sending();
    }
    if (!left || Clock::Real()->Now() >= until) break;
    ::poll(nullptr, 0, 1);
  }
  // Closed with the mesh, when the others have left, too: what they still send would be answered by
  // a reset, which takes the goodbye from them if they have not read it.
  for (const int rank : ranks_) {
    if (link(rank)->open()) ::shutdown(link(rank)->socket(), SHUT_WR);
  }
}

}  // namespace lockstep
