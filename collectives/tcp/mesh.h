// SPDX-License-Identifier: Apache-2.0
// The connections of one rank to the ranks of other nodes, driven by the thread that waits: a call
// says what it sends and where what comes shall go (MeshUser), and Mesh::Run moves it until the
// call is done, a peer is lost, the generation is aborted or the deadline passes.
//
// The first failure of a connection is that of the generation: Run, Poll and everything after them
// return it. What the error says, and of whom, is told by the peer's goodbye where there is one.
// Thread-safety: used by one thread at a time, the worker's main thread or the one that it lends
// the mesh to (mesh_thread.h); Wake is thread-safe.
#ifndef LOCKSTEP_COLLECTIVES_TCP_MESH_H_
#define LOCKSTEP_COLLECTIVES_TCP_MESH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/flight_recorder.h"
#include "collectives/tcp/farewells.h"
#include "collectives/tcp/link.h"
#include "common/fd.h"

namespace lockstep {

// What a call does with its peers' frames. `rank` is the peer.
class MeshUser {
 public:
  virtual ~MeshUser() = default;
  // The next frame to send to `rank`; false: none is ready.
  virtual bool Next(int rank, OutgoingFrame* frame) = 0;
  // Where the payload of a frame goes; null: not now, ask again after a step forward.
  virtual absl::StatusOr<char*> Place(int rank, const FrameHeader& header) = 0;
  // It is there.
  virtual absl::Status Arrived(int rank, const FrameHeader& header) = 0;
  // Everything was sent (frames that were begun apart) and has arrived.
  virtual bool Done() const = 0;
  // Returns whether the call cannot be done without something from `rank`, or without sending it
  // something.
  virtual bool WaitsFor(int rank) const = 0;
};

struct MeshOptions {
  int64_t generation = 0;
  int world = 0;
  int self = 0;  // this rank
  std::vector<Connection> connections;
  std::vector<std::string> names;  // by rank: "rank 3 (host b)"
  int wake = -1;                   // readable when alive() may have something to say
  std::function<absl::Status()> alive;
  FlightRecorder* recorder = nullptr;
  bool may_spin = false;
  // How long a peer's kernel may leave data unacknowledged before it counts as unreachable.
  absl::Duration silence = absl::Seconds(10);
};

class Mesh {
 public:
  explicit Mesh(MeshOptions options);
  ~Mesh();

  // Drives `user` until it is done. Errors: Aborted; FailedPrecondition when a peer says that calls
  // differ; DeadlineExceeded without a message, when the caller knows what to say.
  absl::Status Run(MeshUser* user, absl::Time deadline);
  // Does what can be done without waiting; with `user`, also for it. Errors: as Run.
  absl::Status Poll(MeshUser* user = nullptr);
  // Drives `user` until `stop` is set or it is done, for an owner that computes meanwhile: it never
  // spins, and the flight recorder is left to the owner. Errors: as Run, without a deadline.
  absl::Status Serve(MeshUser* user, const std::atomic<bool>& stop);
  // Serve looks at `stop` and asks `user` for frames again.
  void Wake();

  // Sends a small frame to every peer, or to one, as soon as that can be done; does not block.
  void Tell(const FrameHeader& header, const std::string& payload = "");
  void Tell(int rank, const FrameHeader& header, std::string payload = "");
  // This rank has completed the numbered call `call`: its goodbye says so.
  void NoteCompleted(int64_t call) { completed_ = call; }
  // Returns whether `status`, an error of this mesh, only tells of a peer that left after it had
  // completed the numbered call `call`.
  bool LeftAfter(const absl::Status& status, int64_t call) const;
  // The last thing: tells all peers why this rank leaves. Does not block; the connections are
  // closed with the mesh, which waits a moment for peers that have not got it (farewells.h).
  void Leave(const absl::Status& status);

  // Null for ranks of this node.
  Link* link(int rank) const { return links_[static_cast<size_t>(rank)].get(); }
  const std::string& name(int rank) const { return options_.names[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  // Moves what can be moved; `moved` becomes true when something was.
  absl::Status Pump(MeshUser* user, bool* moved);
  // `some` bytes came or went, of what calls move or not.
  void NoteMoved(bool some, bool data, bool* moved);
  absl::Status PumpOut(Link* link, MeshUser* user, bool* moved);
  absl::Status PumpIn(Link* link, MeshUser* user, bool* moved);
  // Sees to a frame that is no call's; false: it is.
  absl::StatusOr<bool> PlaceOwn(Link* link, const FrameHeader& header);
  absl::Status ArrivedOwn(Link* link, const FrameHeader& header);
  absl::Status OnGoodbye(Link* link, const Goodbye& goodbye);
  // Says what an error of a link means; OK when the peer has left in order.
  absl::Status Explain(Link* link, const absl::Status& status);
  // The same where reading came to the end.
  absl::Status EndOfLink(Link* link, const absl::Status& status);
  absl::Status LookForGoodbye(Link* link);
  // The link is of no use any more, for this.
  absl::Status Lost(Link* link, const absl::Status& status);
  absl::Status CheckSilence(absl::Time now);
  absl::Status Fail(absl::Status status);
  // Takes what epoll tells, waiting for `timeout` at most.
  void Take(absl::Duration timeout);
  struct Wait {
    int rounds = 0;
    absl::Time since = absl::InfinitePast();
  };
  absl::Status Idle(const MeshUser& user, absl::Time deadline, Wait* wait);

  MeshOptions options_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank
  std::vector<int> ranks_;                    // those with links
  UniqueFd epoll_;
  UniqueFd nudge_;  // what Wake writes
  absl::Status failed_;
  int64_t completed_ = 0;
  bool left_ = false;
  absl::Time left_at_;
  std::vector<bool> hung_up_;  // by rank
  absl::Time next_check_ = absl::InfinitePast();
  Farewells farewells_;  // last: its thread uses the links
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_MESH_H_
