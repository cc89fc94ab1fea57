// SPDX-License-Identifier: Apache-2.0
#include "collectives/tcp/farewells.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <string>

#include "common/clock.h"

namespace lockstep {
namespace {

constexpr int kLookMillis = 1;

// Takes in what a connection has and forgets it: this rank has its own reason to leave, and the
// peer may have to end a frame before it reads.
void Drain(int socket) {
  char nothing[1 << 16];
  while (::recv(socket, nothing, sizeof(nothing), MSG_DONTWAIT) > 0) {
  }
}

// Returns whether the peer's kernel has acknowledged everything, or nobody is there to do it any
// more.
bool HasTaken(int socket) {
  int unacknowledged = 0;
  if (::ioctl(socket, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0) return true;
  tcp_info info{};
  socklen_t size = sizeof(info);
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
         info.tcpi_state == TCP_CLOSE;
}

}  // namespace

void Farewells::Send(const Goodbye& goodbye, const std::vector<Link*>& links, int unheard) {
  std::string text;
  const FrameHeader header = GoodbyeFrame(goodbye, &text);
  for (Link* const link : links) {
    if (!link->open()) continue;
    // The call that began the frame is over, and its memory is the next one's.
    link->OwnPayload();
    link->Queue(header, text);
    peers_.push_back({.link = link, .awaited = link->rank() != unheard});
  }
  if (!MoveAll()) thread_ = Thread("goodbyes", [this] { Loop(); });
}

void Farewells::Loop() {
  while (!ends_.load(std::memory_order_acquire) && !MoveAll()) ::poll(nullptr, 0, kLookMillis);
}

bool Farewells::MoveAll() {
  bool all = true;
  for (Peer& peer : peers_) all &= Move(&peer);
  return all;
}

bool Farewells::Move(Peer* peer) {
  if (peer->gone || peer->all_said) return true;
  Link* const link = peer->link;
  Drain(link->socket());
  bool moved = false;
  while (link->sending() || link->HasQueued()) {
    if (!link->sending()) link->BeginQueued();
    link->NoteWritable();
    if (!link->Write(&moved).ok()) return peer->gone = true;
    if (link->sending()) return false;
  }
  ::shutdown(link->socket(), SHUT_WR);
  return peer->all_said = true;
}

void Farewells::AwaitTaken(absl::Time until) {
  ends_.store(true, std::memory_order_release);
  thread_.Join();
  while (true) {
    MoveAll();
    bool taken = true;
    for (const Peer& peer : peers_) {
      if (peer.gone || !peer.awaited) continue;
      Drain(peer.link->socket());
      taken &= peer.all_said && HasTaken(peer.link->socket());
    }
    if (taken || Clock::Real()->Now() >= until) break;
    ::poll(nullptr, 0, kLookMillis);
  }
  for (const Peer& peer : peers_) peer.link->Close();
  peers_.clear();
}

}  // namespace lockstep
