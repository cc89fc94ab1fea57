// SPDX-License-Identifier: Apache-2.0
// The last thing that a rank does with its connections: every peer that lives gets the goodbye with
// the reason, whatever either of them does meanwhile. A frame that was begun goes first, however
// long the peer takes to read it, on a thread of its own; and no connection is closed before the
// peer's kernel has all that was said, since what this rank did not read makes of a close a reset,
// which takes what is still on its way.
// Thread-safety: confined to the owner of the links, which leaves them alone after Send.
#ifndef LOCKSTEP_COLLECTIVES_TCP_FAREWELLS_H_
#define LOCKSTEP_COLLECTIVES_TCP_FAREWELLS_H_

#include <atomic>
#include <vector>

#include "absl/time/time.h"
#include "collectives/tcp/link.h"
#include "collectives/tcp/wire.h"
#include "common/thread.h"

namespace lockstep {

class Farewells {
 public:
  Farewells() = default;

  // Says `goodbye` on each of `links` that is open. Does not block: what a connection does not take
  // at once goes on the thread. `unheard`: a rank that is lost, for which nobody waits; -1: none.
  void Send(const Goodbye& goodbye, const std::vector<Link*>& links, int unheard);
  // Blocks until each peer has heard it or has closed its end, or until `until`. Closes the links.
  void AwaitTaken(absl::Time until);

 private:
  struct Peer {
    Link* link = nullptr;
    bool awaited = true;
    bool gone = false;      // nothing can be written any more
    bool all_said = false;  // to the kernel, with the end of the stream
  };
  // Takes in what has come, and writes what can be written; true when nothing more is to be.
  static bool Move(Peer* peer);
  // The same for all.
  bool MoveAll();
  void Loop();

  std::vector<Peer> peers_;
  std::atomic<bool> ends_{false};
  Thread thread_;  // moves peers_ while it runs
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_FAREWELLS_H_
