// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/joiner.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/group_end.h"
#include "collectives/tcp/departure.h"
#include "collectives/tcp/link.h"
#include "collectives/tcp/socket_io.h"
#include "common/clock.h"
#include "common/status.h"

namespace lockstep {
namespace {

// A visitor that has not proved itself by then is turned out.
constexpr absl::Duration kProveWithin = absl::Seconds(5);
constexpr size_t kMostVisitors = 64;  // besides one for each peer
// The longest sleep: deaths of local peers wake nobody here.
constexpr absl::Duration kSlice = absl::Milliseconds(5);
// Missing ranks of which all is said; of more, which they are.
constexpr size_t kMostTold = 16;
// How long the peers have to hear the goodbye of who gives up: another generation follows.
constexpr absl::Duration kLinger = absl::Seconds(1);

}  // namespace

Joiner::Joiner(JoinOptions options)
    : options_(std::move(options)),
      self_(options_.group->members[static_cast<size_t>(options_.group->rank)]) {
  for (const int rank : options_.peers) {
    Peer peer;
    peer.member = &options_.group->members[static_cast<size_t>(rank)];
    peer.accepts = rank < self_.rank;
    peer.connection.rank = rank;
    peer.troubles.resize(peer.member->tcp_addresses.size());
    peers_.push_back(std::move(peer));
  }
}

absl::Status Joiner::Check() const {
  if (options_.group->secret.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "generation ", options_.group->generation, " spans nodes and has no secret to prove with"));
  }
  absl::Status first;
  std::vector<MissingRank> missing;
  for (const Peer& peer : peers_) {
    // One without an address cannot connect either: nobody waits for it in vain.
    if (!peer.member->tcp_addresses.empty()) continue;
    const absl::Status status = NoAddress(*peer.member, self_, peer.connection.rank);
    missing.push_back({peer.connection.rank, std::string(status.message())});
    first.Update(status);
  }
  return first.ok() ? first : WithMissing(first, missing);
}

bool Joiner::Complete() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.joined; });
}

absl::Status Joiner::Missing() const {
  std::vector<MissingRank> missing;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_[i];
    if (peer.joined) continue;
    missing.push_back(
        {peer.connection.rank,
         peer.accepts
             ? absl::StrCat(NameOf(self_), " cannot reach ", NameOf(*peer.member), TroublesOf(i))
             : absl::StrCat(NameOf(*peer.member), " has not come to ", NameOf(self_))});
  }
  std::vector<std::string> told;
  std::vector<int> others;
  for (const MissingRank& each : missing) {
    if (told.size() < kMostTold) {
      told.push_back(each.text);
    } else {
      others.push_back(each.rank);
    }
  }
  std::string text = absl::StrJoin(told, "; ");
  if (!others.empty()) absl::StrAppend(&text, "; nor have ranks ", absl::StrJoin(others, ", "));
  return WithMissing(
      WithEnd(absl::DeadlineExceededError(text), {EndCause::kPeerMissing, missing.front().rank}),
      missing);
}

std::unique_ptr<Departure> Joiner::SayGoodbye(const absl::Status& why) {
  // To these a proof has gone, with which the peer is joined.
  for (const auto& attempt : attempts_) {
    if (attempt->stage == Attempt::Stage::kWelcome) Take(attempt.get());
  }
  std::vector<std::unique_ptr<Link>> links;
  for (Peer& peer : peers_) {
    if (!peer.joined) continue;
    links.push_back(std::make_unique<Link>(std::move(peer.connection), options_.group->generation));
  }
  Goodbye goodbye{why.code(), EndOf(why), std::string(why.message())};
  // Whom only this rank has missed may live, and may have found all the others.
  if (goodbye.end.cause == EndCause::kPeerMissing) {
    goodbye.code = absl::StatusCode::kAborted;
    goodbye.end.cause = EndCause::kUnreachable;
  }
  return std::make_unique<Departure>(goodbye, std::move(links), Clock::Real()->Now() + kLinger);
}

absl::StatusOr<std::vector<Connection>> Joiner::Run(absl::Time deadline,
                                                    std::unique_ptr<Departure>* departure) {
  LS_RETURN_IF_ERROR(Check());
  if (absl::Status joined = Join(deadline); !joined.ok()) {
    *departure = SayGoodbye(joined);
    return joined;
  }
  std::vector<Connection> connections;
  for (Peer& peer : peers_) connections.push_back(std::move(peer.connection));
  return connections;
}

absl::Status Joiner::Join(absl::Time deadline) {
  std::vector<pollfd> polled;
  while (!Complete()) {
    LS_RETURN_IF_ERROR(options_.alive());
    const absl::Time now = Clock::Real()->Now();
    if (now >= deadline) return Missing();
    StartTries(now);
    DropOld(now);
    for (const Peer& peer : peers_) {
      if (peer.joined) continue;
      options_.waiting(peer.connection.rank);
      break;
    }
    polled.assign(1, {options_.wake, POLLIN, 0});
    for (const UniqueFd& socket : options_.listener->sockets()) {
      polled.push_back({socket.get(), POLLIN, 0});
    }
    for (const auto& attempt : attempts_) {
      const bool connecting = attempt->stage == Attempt::Stage::kConnecting;
      polled.push_back(
          {attempt->socket.get(), static_cast<short>(connecting ? POLLOUT : POLLIN), 0});
    }
    for (const auto& visitor : visitors_) polled.push_back({visitor->socket.get(), POLLIN, 0});
    const timespec slice = absl::ToTimespec(std::min(kSlice, deadline - now));
    ::ppoll(polled.data(), polled.size(), &slice, nullptr);
    // Those that come meanwhile are not in `polled` yet.
    const size_t attempts = attempts_.size(), visitors = visitors_.size();
    size_t at = 1 + options_.listener->sockets().size();
    for (size_t i = 0; i < attempts; ++i, ++at) {
      if (polled[at].revents != 0) Serve(attempts_[i].get());
    }
    for (size_t i = 0; i < visitors; ++i, ++at) {
      if (polled[at].revents != 0) Serve(visitors_[i].get());
    }
    for (size_t i = 0; i < options_.listener->sockets().size(); ++i) {
      if (polled[1 + i].revents != 0) Accept(polled[1 + i].fd, now);
    }
    std::erase_if(attempts_, [](const auto& attempt) { return !attempt->socket.valid(); });
    std::erase_if(visitors_, [](const auto& visitor) { return !visitor->socket.valid(); });
  }
  return absl::OkStatus();
}

// ---- accepting ----

void Joiner::Accept(int listener, absl::Time now) {
  while (true) {
    UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) return;  // none, or one that has gone again, or too many files
    if (visitors_.size() >= kMostVisitors + peers_.size()) visitors_.erase(visitors_.begin());
    Identity identity{options_.group->job, options_.group->generation, -1, self_.rank};
    visitors_.push_back(std::make_unique<Visitor>(
        Visitor{std::move(socket), ServerHandshake(std::move(identity), options_.group->secret), -1,
                "", now}));
    SendWithoutDelay(visitors_.back()->socket.get());
  }
}

void Joiner::Serve(Visitor* visitor) {
  int error = 0;
  const int socket = visitor->socket.get();
  if (visitor->from < 0) {
    const Filled filled = ReadUpTo(socket, kHelloBytes, &visitor->input, &error);
    if (filled == Filled::kEnded) visitor->socket.reset();
    if (filled != Filled::kYes) return;
    int from = -1;
    absl::StatusOr<std::string> challenge = visitor->handshake.Answer(visitor->input, &from);
    const bool expected = std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
      return !peer.accepts && peer.connection.rank == from;
    });
    if (challenge.ok() && !expected) {
      challenge = absl::FailedPreconditionError("that rank is not expected");
    }
    if (!challenge.ok() || !SendAll(socket, *challenge)) {
      if (!challenge.ok()) SendAll(socket, Refusal(std::string(challenge.status().message())));
      visitor->socket.reset();
      return;
    }
    visitor->from = from;
    visitor->input.clear();
    return;
  }
  const Filled filled = ReadUpTo(socket, kProofBytes, &visitor->input, &error);
  if (filled == Filled::kEnded) visitor->socket.reset();
  if (filled != Filled::kYes) return;
  const absl::StatusOr<std::string> welcome = visitor->handshake.Finish(visitor->input);
  if (!welcome.ok() || !SendAll(socket, *welcome)) {
    visitor->socket.reset();
    return;
  }
  for (Peer& peer : peers_) {
    if (peer.connection.rank != visitor->from) continue;
    // A second one: the peer has given the first up.
    peer.connection.socket = std::move(visitor->socket);
    peer.connection.seed = visitor->handshake.seed();
    peer.joined = true;
  }
}

void Joiner::DropOld(absl::Time now) {
  for (const auto& visitor : visitors_) {
    if (now - visitor->begun > kProveWithin) visitor->socket.reset();
  }
  std::erase_if(visitors_, [](const auto& visitor) { return !visitor->socket.valid(); });
}

}  // namespace lockstep
