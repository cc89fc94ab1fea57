// SPDX-License-Identifier: Apache-2.0
// Joins the connections of one generation: one between this rank and each rank of another node. The
// higher rank connects, the lower accepts. Addresses of a peer are tried in their order, the next
// one when one fails or does not answer within a quarter of a second; the first at which the right
// peer proves itself is taken. Whoever else comes to the listener is turned away, and what comes
// without a word goes after some seconds, or when too many such come. Whoever gives up says why to
// the peers that may have joined it.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_COLLECTIVES_TCP_JOINER_H_
#define LOCKSTEP_COLLECTIVES_TCP_JOINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/tcp/handshake.h"
#include "collectives/tcp/listener.h"
#include "common/fd.h"

namespace lockstep {

class Departure;

// A connection whose ends have proved who they are.
struct Connection {
  int rank = -1;  // of the peer
  UniqueFd socket;
  uint64_t seed = 0;  // of its checksums
};

struct JoinOptions {
  const GroupSpec* group = nullptr;
  std::vector<int> peers;  // ranks to be connected with
  const Listener* listener = nullptr;
  int wake = -1;                        // readable when alive() may have something to say
  std::function<absl::Status()> alive;  // not OK: this rank gives up with it
  std::function<void(int rank)> waiting;
};

class Joiner {
 public:
  explicit Joiner(JoinOptions options);

  // Blocks until all are there. Errors: that of `alive`; DeadlineExceeded naming both ends of what
  // is missing and what was met at each address, with the peers' ranks (group_end.h), also when a
  // peer has no address; FailedPrecondition when there is no secret. After one of the first two
  // `*departure` tells the peers, for a second at most.
  absl::StatusOr<std::vector<Connection>> Run(absl::Time deadline,
                                              std::unique_ptr<Departure>* departure);

 private:
  // One try at one address of a peer.
  struct Attempt {
    size_t peer = 0;
    size_t address = 0;
    UniqueFd socket;
    std::unique_ptr<ClientHandshake> handshake;
    enum class Stage { kConnecting, kChallenge, kWelcome } stage = Stage::kConnecting;
    std::string input;
    absl::Time begun;
  };
  // Somebody who came and is not known yet.
  struct Visitor {
    UniqueFd socket;
    ServerHandshake handshake;
    int from = -1;
    std::string input;
    absl::Time begun;
  };
  struct Peer {
    const GroupMember* member = nullptr;
    bool accepts = false;  // this rank connects to it
    Connection connection;
    bool joined = false;
    size_t next_address = 0;
    absl::Time next_try = absl::InfinitePast();
    int rounds = 0;
    std::vector<std::string> troubles;  // what the last try at each address met; empty: nothing yet
  };

  absl::Status Check() const;
  // Moves until all are joined. Errors: as Run.
  absl::Status Join(absl::Time deadline);
  bool Complete() const;
  absl::Status Missing() const;
  // What stands in the way to the peer: of each address that was tried, what it met.
  std::string TroublesOf(size_t peer) const;
  // Tells those that have joined this rank, who may have all that they need, why it gives up.
  std::unique_ptr<Departure> SayGoodbye(const absl::Status& why);

  // ---- connecting (joiner_connect.cc) ----
  void StartTries(absl::Time now);
  void StartTry(size_t peer, absl::Time now);
  void Failed(Attempt* attempt, const std::string& why);
  void Serve(Attempt* attempt);
  // The right peer has answered.
  void Choose(Attempt* attempt);
  // Its connection is the peer's.
  void Take(Attempt* attempt);

  // ---- accepting ----
  void Accept(int listener, absl::Time now);
  void Serve(Visitor* visitor);
  void DropOld(absl::Time now);

  const JoinOptions options_;
  const GroupMember& self_;
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  std::vector<std::unique_ptr<Visitor>> visitors_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_JOINER_H_
