// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/door.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "coordinator/service/peer_host.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

// Fills in who is at the other end of `fd`. Whether the kernel says so.
bool AskKernel(int fd, Admission::Peer& peer) {
  sockaddr_storage name = {};
  socklen_t size = sizeof(name);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return false;
  if (name.ss_family == AF_UNIX) {
    ucred user = {};
    socklen_t user_size = sizeof(user);
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &user_size) != 0) return false;
    peer.uid = user.uid;
    return true;
  }
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return false;
  }
  const PeerPlace place =
      ParsePeer(name.ss_family == AF_INET6 ? absl::StrCat("ipv6:[", host, "]:", port)
                                           : absl::StrCat("ipv4:", host, ":", port));
  peer.host = place.host;
  peer.port = place.port;
  return true;
}

}  // namespace

Door::Door(std::vector<std::string> secrets, Admission::Limits limits, bool local_users,
           Clock* clock)
    : clock_(clock), admission_(::geteuid(), std::move(secrets), limits, local_users) {}

std::optional<Admission::Peer> Door::LetIn(int fd) {
  struct stat status;
  Admission::Peer peer;
  if (::fstat(fd, &status) != 0 || !AskKernel(fd, peer)) return std::nullopt;
  peer.id = status.st_ino;
  absl::MutexLock lock(&mu_);
  Admission::Verdict verdict = admission_.Connect(peer);
  if (verdict == Admission::Verdict::kFull) {
    ForgetEnded();
    verdict = admission_.Connect(peer);
  }
  if (verdict == Admission::Verdict::kLetIn) {
    open_[status.st_ino] = fd;
    return peer;
  }
  if (const auto refused = admission_.Refused()) {
    LS_LOG_WARNING << "connections turned away so far: " << *refused
                   << (verdict == Admission::Verdict::kStranger
                           ? " (the newest: of another user)"
                           : " (the newest: there are too many, or too many without a token)");
  }
  return std::nullopt;
}

// Looked for only when there seem to be too many: gRPC does not say when it closes one. And not at
// each knock of somebody who goes on and on.
void Door::ForgetEnded() {
  const absl::Time now = clock_->Now();
  if (now - looked_at_ < kLookAgain) return;
  looked_at_ = now;
  std::erase_if(open_, [this](const auto& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    struct stat status;
    if (::fstat(entry.second, &status) == 0 && status.st_ino == entry.first) return false;
    admission_.Ended(entry.first);
    return true;
  });
}

bool Door::IsClusterToken(absl::string_view token) {
  absl::MutexLock lock(&mu_);
  return admission_.Knows(token);
}

void Door::TellCalls(std::function<void(uint64_t id)> on_call) {
  absl::MutexLock lock(&mu_);
  on_call_ = std::move(on_call);
}

void Door::HasCalled(const std::string& peer) {
  const PeerPlace place = ParsePeer(peer);
  std::optional<uint64_t> first;
  std::function<void(uint64_t)> tell;
  {
    absl::MutexLock lock(&mu_);
    first = admission_.HasCalled(place.host, place.port);
    if (first.has_value()) tell = on_call_;
  }
  if (tell) tell(*first);
}

void Door::HasProven(const std::string& peer) {
  const PeerPlace place = ParsePeer(peer);
  absl::MutexLock lock(&mu_);
  admission_.HasProven(place.host, place.port);
}

}  // namespace lockstep::coordinator
