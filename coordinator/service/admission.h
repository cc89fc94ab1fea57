// SPDX-License-Identifier: Apache-2.0
// Who may connect and who may call, as a pure machine: what the kernel and callers say goes in, a
// verdict comes out. No gRPC, no lock, no descriptor; service/door.h is the shell around it.
//
// A connection is proven when the kernel says that its peer is the coordinator's own user or root
// (Unix sockets), or when a right token was shown on it. Of those that are not there are only so
// many, and fewer from one host: who knows no token cannot keep those out who do.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_ADMISSION_H_
#define LOCKSTEP_COORDINATOR_SERVICE_ADMISSION_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep::coordinator {

class Admission {
 public:
  struct Limits {
    size_t connections = 16384;
    size_t unproven = 4096;
    size_t unproven_of_host = 1024;
  };
  // Who knocks. `id` is of no other connection that is open.
  struct Peer {
    uint64_t id = 0;
    std::string host;          // "10.0.0.1"; empty on a Unix socket
    int port = 0;              // of theirs
    std::optional<uid_t> uid;  // on a Unix socket: the kernel's word
  };
  enum class Verdict {
    kLetIn,
    kStranger,  // another user of this machine
    kFull,      // of all connections, or of those that have proven nothing
  };

  // `own`: the coordinator's user. `secrets`: the cluster's, of which one proves a caller; empty:
  // on connections from elsewhere nobody proves anything. `local_users`: other users of this
  // machine may connect; they count as those that have proven nothing.
  Admission(uid_t own, std::vector<std::string> secrets, Limits limits, bool local_users = false);

  // Somebody connects. After kFull the caller may name those that have ended and ask again.
  Verdict Connect(const Peer& peer);
  // The connection is over.
  void Ended(uint64_t id);
  // A peer was turned away. How many so far, when that is worth saying: the first is, then ever
  // fewer, so that whoever knocks on purpose does not fill the log.
  std::optional<int64_t> Refused();

  // Returns whether `token` is one of the cluster's secrets.
  bool Knows(absl::string_view token) const;
  // A call came from `host` and `port`. Which connection that is, if it is its first one.
  std::optional<uint64_t> HasCalled(const std::string& host, int port);
  // Who calls from `host` and `port` has shown who they are: their connection is proven.
  void HasProven(const std::string& host, int port);

  size_t connections() const { return connections_.size(); }
  size_t unproven() const { return unproven_; }

 private:
  struct Connection {
    std::string host;
    int port = 0;
    bool proven = false;
    bool called = false;
  };
  using Place = std::pair<std::string, int>;

  void Prove(Connection& connection);

  const uid_t own_;
  const std::vector<std::string> secrets_;
  const Limits limits_;
  const bool local_users_;
  std::map<uint64_t, Connection> connections_;
  std::map<Place, uint64_t> by_place_;              // TCP's, by their ends
  std::map<std::string, size_t> unproven_of_host_;  // none is 0
  size_t unproven_ = 0;
  int64_t refused_ = 0;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_ADMISSION_H_
