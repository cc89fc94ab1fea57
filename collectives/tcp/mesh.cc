// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/mesh.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group_end.h"
#include "collectives/tcp/socket_io.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/relax.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr int kSpins = 300;
constexpr absl::Duration kYieldFor = absl::Milliseconds(1);
// So few sockets are asked themselves while spinning; of more, epoll tells which have something.
constexpr size_t kFewLinks = 4;
// Frames of one connection before the others have their turn.
constexpr int kTurn = 4;
constexpr size_t kInboxBytes = 512 << 10;
constexpr uint32_t kWakeEvent = UINT32_MAX;
// Deaths and parts of local peers wake nobody here.
constexpr absl::Duration kServeSlice = absl::Milliseconds(1);

}  // namespace

Mesh::Mesh(MeshOptions options)
    : options_(std::move(options)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      nudge_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  LS_CHECK(epoll_.valid() && nudge_.valid());
  links_.resize(static_cast<size_t>(options_.world));
  hung_up_.resize(links_.size(), false);
  for (Connection& connection : options_.connections) {
    const int rank = connection.rank;
    ranks_.push_back(rank);
    auto& link = links_[static_cast<size_t>(rank)];
    link = std::make_unique<Link>(std::move(connection), options_.generation);
    ProbeWhenIdle(link->socket(), options_.silence);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.u32 = static_cast<uint32_t>(rank);
    LS_CHECK_EQ(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link->socket(), &event), 0);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = kWakeEvent;
  if (options_.wake >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, options_.wake, &event);
  event.events = EPOLLIN | EPOLLET;  // each write is an event, and none has to be read
  LS_CHECK_EQ(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, nudge_.get(), &event), 0);
}

absl::Status Mesh::Fail(absl::Status status) {
  if (failed_.ok()) failed_ = std::move(status);
  return failed_;
}

absl::Status Mesh::Run(MeshUser* user, absl::Time deadline) {
  LS_RETURN_IF_ERROR(failed_);
  Wait wait;
  for (int turn = 1;; ++turn) {
    bool moved = false;
    const absl::Status status = Pump(user, &moved);
    // What ends a connection after all that this call needs concerns the next one.
    if (user->Done()) return absl::OkStatus();
    LS_RETURN_IF_ERROR(status);
    if (moved) {
      wait = {};
      if (turn % 64 == 0) LS_RETURN_IF_ERROR(options_.alive());
      continue;
    }
    LS_RETURN_IF_ERROR(Idle(*user, deadline, &wait));
  }
}

absl::Status Mesh::Poll(MeshUser* user) {
  LS_RETURN_IF_ERROR(failed_);
  Take(absl::ZeroDuration());
  bool moved = false;
  return Pump(user, &moved);
}

absl::Status Mesh::Serve(MeshUser* user, const std::atomic<bool>& stop) {
  LS_RETURN_IF_ERROR(failed_);
  for (int turn = 1; !stop.load(std::memory_order_acquire); ++turn) {
    bool moved = false;
    const absl::Status status = Pump(user, &moved);
    if (user->Done()) return absl::OkStatus();
    LS_RETURN_IF_ERROR(status);
    if (moved && turn % 64 != 0) continue;
    LS_RETURN_IF_ERROR(options_.alive());
    LS_RETURN_IF_ERROR(CheckSilence(Clock::Real()->Now()));
    if (!moved) Take(kServeSlice);
  }
  return absl::OkStatus();
}

void Mesh::Wake() { ::eventfd_write(nudge_.get(), 1); }

absl::Status Mesh::Idle(const MeshUser& user, absl::Time deadline, Wait* wait) {
  const bool spins = options_.may_spin && wait->rounds < kSpins;
  ++wait->rounds;
  if (spins && wait->rounds % 64 != 0) {
    if (ranks_.size() <= kFewLinks) {
      for (const int rank : ranks_) links_[static_cast<size_t>(rank)]->NoteReadable();
      Relax();
    } else {
      Take(absl::ZeroDuration());
    }
    return absl::OkStatus();
  }
  LS_RETURN_IF_ERROR(options_.alive());
  const absl::Time now = Clock::Real()->Now();
  if (now >= deadline) return absl::DeadlineExceededError("");
  LS_RETURN_IF_ERROR(CheckSilence(now));
  for (const int rank : ranks_) {
    if (!user.WaitsFor(rank)) continue;
    const Link& link = *links_[static_cast<size_t>(rank)];
    const bool told = link.waiting_for >= 0 && link.waiting_call > link.heard.sequence;
    options_.recorder->Waiting(told ? link.waiting_for : rank);
    break;
  }
  if (wait->since == absl::InfinitePast()) wait->since = now;
  if (spins || now - wait->since < kYieldFor) {
    ::sched_yield();
    Take(absl::ZeroDuration());
  } else {
    // No longer than a millisecond: deaths of local peers wake nobody here.
    Take(std::min<absl::Duration>(absl::Milliseconds(1), deadline - now));
  }
  return absl::OkStatus();
}

void Mesh::Take(absl::Duration timeout) {
  std::array<epoll_event, 64> events;
  const int wait = timeout > absl::ZeroDuration()
                       ? static_cast<int>(std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout)))
                       : 0;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait);
  for (int i = 0; i < count; ++i) {
    const uint32_t rank = events[static_cast<size_t>(i)].data.u32;
    if (rank == kWakeEvent) continue;
    const uint32_t what = events[static_cast<size_t>(i)].events;
    Link& link = *links_[rank];
    if ((what & EPOLLOUT) != 0) link.NoteWritable();
    if ((what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) link.NoteReadable();
    if ((what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hung_up_[rank] = true;
  }
}

absl::Status Mesh::Pump(MeshUser* user, bool* moved) {
  for (const int rank : ranks_) {
    Link* const link = links_[static_cast<size_t>(rank)].get();
    if (link->open()) {
      if (hung_up_[static_cast<size_t>(rank)]) link->NoteReadable();
      absl::Status status = PumpIn(link, user, moved);
      if (status.ok() && link->open()) status = PumpOut(link, user, moved);
      if (!status.ok()) return Fail(std::move(status));
    }
    if (link->open() || user == nullptr || !user->WaitsFor(rank)) continue;
    return Fail(WithEnd(
        absl::AbortedError(absl::StrCat(name(rank), " has left generation ", options_.generation)),
        {EndCause::kPeerLeft, rank}));
  }
  return absl::OkStatus();
}

absl::Status Mesh::PumpOut(Link* link, MeshUser* user, bool* moved) {
  OutgoingFrame nowhere;
  while (!link->sends() && user != nullptr && user->Next(link->rank(), &nowhere)) {
  }
  while (link->writable() && link->sends()) {
    if (!link->sending()) {
      OutgoingFrame frame;
      if (link->HasQueued()) {
        link->BeginQueued();
      } else if (user != nullptr && user->Next(link->rank(), &frame)) {
        link->Begin(frame);
      } else {
        return absl::OkStatus();
      }
    }
    bool some = false;
    const absl::Status status = link->Write(&some);
    NoteMoved(some, link->sends_data(), moved);
    if (!status.ok()) return Explain(link, status);
    if (link->sending()) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status Mesh::PumpIn(Link* link, MeshUser* user, bool* moved) {
  for (int i = 0; i < kTurn && link->open(); ++i) {
    const absl::StatusOr<const FrameHeader*> read = link->ReadHeader(moved);
    if (!read.ok()) return EndOfLink(link, read.status());
    const FrameHeader* const header = *read;
    if (header == nullptr) return absl::OkStatus();
    LS_ASSIGN_OR_RETURN(const bool own, PlaceOwn(link, *header));
    if (!own && !link->placed()) {
      char* place = nullptr;
      if (user != nullptr) {
        LS_ASSIGN_OR_RETURN(place, user->Place(link->rank(), *header));
      }
      if (place == nullptr) {
        // Its turn comes later; but one that died is not waited for.
        return hung_up_[static_cast<size_t>(link->rank())] ? LookForGoodbye(link)
                                                           : absl::OkStatus();
      }
      link->Place(place);
    }
    if (own && !link->placed()) return absl::OkStatus();
    bool some = false;
    const absl::StatusOr<bool> whole = link->ReadPayload(&some);
    NoteMoved(some, MovesData(header->kind), moved);
    if (!whole.ok()) return EndOfLink(link, whole.status());
    if (!*whole) return absl::OkStatus();
    *moved = true;
    const FrameHeader arrived = *header;
    LS_RETURN_IF_ERROR(own ? ArrivedOwn(link, arrived) : user->Arrived(link->rank(), arrived));
    if (!own && user->Done()) return absl::OkStatus();
  }
  return absl::OkStatus();
}

void Mesh::NoteMoved(bool some, bool data, bool* moved) {
  *moved |= some;
  if (some && data) options_.recorder->Moved();
}

absl::Status Mesh::EndOfLink(Link* link, const absl::Status& status) {
  const bool known = link->last_words_read;
  LS_RETURN_IF_ERROR(Explain(link, status));
  // It has left in order, and all that came before has been read.
  if (known || !link->LastWords().has_value()) link->Close();
  return absl::OkStatus();
}

absl::StatusOr<bool> Mesh::PlaceOwn(Link* link, const FrameHeader& header) {
  switch (header.kind) {
    case FrameKind::kCall:
    case FrameKind::kCalls:
    case FrameKind::kData:
      return false;
    case FrameKind::kMessage:
      if (link->placed() || link->inbox_bytes > kInboxBytes) return true;
      link->inbox.push_back({header, std::vector<char>(std::max<size_t>(header.bytes, 1)), false});
      link->inbox_bytes += header.bytes;
      link->Place(link->inbox.back().payload.data());
      return true;
    case FrameKind::kWaiting:
    case FrameKind::kCommitted:
    case FrameKind::kGoodbye:
      if (link->placed()) return true;
      link->own.resize(std::max<size_t>(header.bytes, 1));
      link->Place(link->own.data());
      return true;
  }
  return false;
}

absl::Status Mesh::ArrivedOwn(Link* link, const FrameHeader& header) {
  if (header.kind == FrameKind::kCommitted) {
    link->committed = std::max(link->committed, static_cast<int64_t>(header.offset));
  } else if (header.kind == FrameKind::kWaiting) {
    link->waiting_for = static_cast<int>(header.part);
    link->waiting_call = header.operation.sequence;
  } else if (header.kind == FrameKind::kGoodbye) {
    return OnGoodbye(link, ParseGoodbye(header, link->own.substr(0, header.bytes)));
  } else {
    link->inbox.back().whole = true;
  }
  return absl::OkStatus();
}

void Mesh::Tell(const FrameHeader& header, const std::string& payload) {
  for (const int rank : ranks_) Tell(rank, header, payload);
}

void Mesh::Tell(int rank, const FrameHeader& header, std::string payload) {
  Link* const link = links_[static_cast<size_t>(rank)].get();
  if (!failed_.ok() || !link->open()) return;
  link->Queue(header, std::move(payload));
  bool moved = false;
  const absl::Status status = PumpOut(link, nullptr, &moved);
  if (!status.ok()) Fail(status).IgnoreError();
}

}  // namespace lockstep
