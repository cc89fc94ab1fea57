// SPDX-License-Identifier: Apache-2.0
// The connecting half of a Joiner.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/tcp/address.h"
#include "collectives/tcp/joiner.h"
#include "collectives/tcp/socket_io.h"
#include "common/clock.h"

namespace lockstep {
namespace {

// When an address has not answered for so long the next one is tried beside it.
constexpr absl::Duration kHeadStart = absl::Milliseconds(250);
// An address where nothing answers at all is given up.
constexpr absl::Duration kConnectWithin = absl::Seconds(3);
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);
constexpr char kNoAnswer[] = "no answer";

}  // namespace

void Joiner::StartTries(absl::Time now) {
  for (const auto& attempt : attempts_) {
    const bool hangs = attempt->stage == Attempt::Stage::kConnecting;
    if (hangs && now - attempt->begun > kConnectWithin) {
      Failed(attempt.get(), kNoAnswer);
    }
  }
  std::erase_if(attempts_, [](const auto& attempt) { return !attempt->socket.valid(); });
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (!peer.accepts || peer.joined || now < peer.next_try) continue;
    const size_t addresses = peer.member->tcp_addresses.size();
    const auto pending = [&](size_t address) {
      return std::any_of(attempts_.begin(), attempts_.end(), [&](const auto& attempt) {
        return attempt->peer == i && attempt->address == address;
      });
    };
    // Where a try is under way the peer may answer late: there is no second one.
    while (peer.next_address < addresses && pending(peer.next_address)) ++peer.next_address;
    if (peer.next_address == addresses) {
      peer.next_address = 0;
      ++peer.rounds;
      while (peer.next_address < addresses && pending(peer.next_address)) ++peer.next_address;
      if (peer.next_address == addresses) continue;
    }
    StartTry(i, now);
  }
}

void Joiner::StartTry(size_t index, absl::Time now) {
  Peer& peer = peers_[index];
  auto attempt = std::make_unique<Attempt>();
  attempt->peer = index;
  attempt->address = peer.next_address++;
  attempt->begun = now;
  peer.next_try = now + kHeadStart;
  const std::string& text = peer.member->tcp_addresses[attempt->address];
  const absl::StatusOr<SocketAddress> address = ParseSocketAddress(text);
  if (!address.ok()) return Failed(attempt.get(), std::string(address.status().message()));
  attempt->socket =
      UniqueFd(::socket(address->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!attempt->socket.valid()) return Failed(attempt.get(), std::strerror(errno));
  SendWithoutDelay(attempt->socket.get());
  attempt->handshake = std::make_unique<ClientHandshake>(
      Identity{options_.group->job, options_.group->generation, self_.rank, peer.connection.rank},
      options_.group->secret);
  if (::connect(attempt->socket.get(), address->get(), address->size) != 0 &&
      errno != EINPROGRESS) {
    return Failed(attempt.get(), std::strerror(errno));
  }
  attempts_.push_back(std::move(attempt));
}

std::string Joiner::TroublesOf(size_t index) const {
  std::vector<std::string> troubles = peers_[index].troubles;
  for (const auto& attempt : attempts_) {
    if (attempt->peer != index) continue;
    std::string& trouble = troubles[attempt->address];
    if (attempt->stage != Attempt::Stage::kConnecting) {
      trouble = "connected, but the worker does not answer";
    } else if (trouble.empty()) {
      trouble = kNoAnswer;
    }
  }
  std::vector<std::string> told;
  for (size_t i = 0; i < troubles.size(); ++i) {
    if (troubles[i].empty()) continue;
    told.push_back(absl::StrCat(peers_[index].member->tcp_addresses[i], ": ", troubles[i]));
  }
  return told.empty() ? "" : absl::StrCat(" at ", absl::StrJoin(told, ", at "));
}

void Joiner::Failed(Attempt* attempt, const std::string& why) {
  attempt->socket.reset();
  Peer& peer = peers_[attempt->peer];
  if (peer.joined) return;
  peer.troubles[attempt->address] = why;
  // On to the next address at once; after the last one there is a pause.
  const absl::Time now = Clock::Real()->Now();
  const bool last = peer.next_address == peer.member->tcp_addresses.size();
  const absl::Duration pause =
      std::min(kFirstPause * (1 << std::min(peer.rounds, 10)), kLongestPause);
  peer.next_try = last ? now + pause : now;
}

void Joiner::Serve(Attempt* attempt) {
  const int socket = attempt->socket.get();
  if (socket < 0) return;
  if (attempt->stage == Attempt::Stage::kConnecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Failed(attempt, std::strerror(error));
    if (!SendAll(socket, attempt->handshake->hello())) return Failed(attempt, "it closed");
    attempt->stage = Attempt::Stage::kChallenge;
    return;
  }
  int error = 0;
  const bool challenge = attempt->stage == Attempt::Stage::kChallenge;
  const size_t bytes = challenge ? kChallengeBytes : kWelcomeBytes;
  const Filled filled = ReadUpTo(socket, bytes, &attempt->input, &error);
  if (filled == Filled::kLater) return;
  if (filled == Filled::kEnded) {
    return Failed(attempt, error == 0 ? "the connection was closed" : std::strerror(error));
  }
  if (!challenge) return Choose(attempt);
  // The first that knows the secret is the one; the others are not answered.
  const absl::StatusOr<std::string> proof = attempt->handshake->Answer(attempt->input);
  if (!proof.ok()) return Failed(attempt, std::string(proof.status().message()));
  if (!SendAll(socket, *proof)) return Failed(attempt, "the connection was closed");
  attempt->input.clear();
  attempt->stage = Attempt::Stage::kWelcome;
  for (const auto& other : attempts_) {
    if (other.get() != attempt && other->peer == attempt->peer) other->socket.reset();
  }
  peers_[attempt->peer].next_try = absl::InfiniteFuture();
}

void Joiner::Choose(Attempt* attempt) {
  const absl::Status welcome = attempt->handshake->Finish(attempt->input);
  if (!welcome.ok()) return Failed(attempt, std::string(welcome.message()));
  Take(attempt);
}

void Joiner::Take(Attempt* attempt) {
  Peer& peer = peers_[attempt->peer];
  peer.connection.socket = std::move(attempt->socket);
  peer.connection.seed = attempt->handshake->seed();
  peer.joined = true;
}

}  // namespace lockstep
