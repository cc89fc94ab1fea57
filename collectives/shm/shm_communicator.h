// SPDX-License-Identifier: Apache-2.0
// The communicator of one generation between the ranks of one host; see layout.h for how ranks keep
// in step. The sources: shm_communicator.cc (joining, ticks, commit), shm_tree_reduce.cc,
// shm_collectives.cc and shm_messages.cc.
// Thread-safety: as Communicator.
#ifndef LOCKSTEP_COLLECTIVES_SHM_SHM_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_SHM_SHM_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/abort_flag.h"
#include "collectives/communicator.h"
#include "collectives/control_plane.h"
#include "collectives/flight_recorder.h"
#include "collectives/operation.h"
#include "collectives/shm/arena.h"
#include "collectives/shm/waiter.h"
#include "collectives/tree_sum.h"
#include "common/life.h"
#include "common/status.h"

namespace lockstep {

// What a communicator is made from.
struct ShmGroup {
  int64_t generation = 0;
  // The members, and which of them this rank is. They may be a part of the generation:
  // GroupMember's rank is what messages call them.
  int rank = 0;
  std::vector<GroupMember> members;
  OwnArena* own = nullptr;
  std::vector<std::shared_ptr<PeerArena>> peers;  // by rank; null for this rank
  const LifePage* life = nullptr;
  FlightRecorder* recorder = nullptr;
  std::shared_ptr<AbortFlag> abort;
  bool may_spin = false;
};

class ShmCommunicator : public Communicator, public ControlPlane {
 public:
  explicit ShmCommunicator(ShmGroup group);
  ~ShmCommunicator() override;

  // Says that this rank has mapped everyone, and waits until all have said so.
  absl::Status Join(absl::Time deadline);

  // Of the members of this host, by index.
  int rank() const override { return group_.rank; }
  int world_size() const override { return static_cast<int>(group_.members.size()); }
  int64_t generation() const override { return group_.generation; }

  absl::StatusOr<absl::Span<const Slice>> TreeReduce(const TreeReduceArgs& args,
                                                     absl::Time deadline) override;
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op, ReduceOrder order,
                         absl::Time deadline) override;
  absl::Status ReduceScatter(const void* input, void* output, int64_t count, DType dtype,
                             ReduceOp op, absl::Time deadline) override;
  absl::Status AllGather(const void* input, void* output, int64_t count, DType dtype,
                         absl::Time deadline) override;
  absl::Status Broadcast(void* data, int64_t count, DType dtype, int root,
                         absl::Time deadline) override;
  absl::Status Send(const void* data, int64_t count, DType dtype, int to,
                    absl::Time deadline) override;
  absl::Status Recv(void* data, int64_t count, DType dtype, int from, absl::Time deadline) override;
  absl::Status Barrier(absl::Time deadline) override;
  absl::Status ExchangeRanges(float* data, int64_t count, absl::Span<const RangeTransfer> transfers,
                              absl::Time deadline) override;
  absl::Status Replicate(void* data, int64_t bytes, bool have, absl::Time deadline) override;
  absl::StatusOr<SharedPieces> Share(absl::Span<const SharedPiece> pieces,
                                     absl::Time deadline) override;

  void PublishCommitted(int64_t step) override;
  absl::Status WaitCommitted(int64_t step, absl::Time deadline) override;
  std::vector<int64_t> CommittedSteps() const override;

  std::optional<ReducedStep> NewestReduce() const override;
  void ReleaseDead() override;

  ControlPlane* control_plane() override { return this; }
  Operation NewOperation(OpKind kind, int64_t count, DType dtype) const override;
  absl::Status BeginCall(const Operation& operation, int64_t bytes) override;
  absl::Status Announce(const Operation& operation, const void* mine, size_t size, void* all,
                        absl::Time deadline) override;
  absl::Status EndCall(const Operation& operation, absl::Status status) override;
  void RestartNumbering() override { sequence_ = 0; }
  absl::Status CheckAlive() const override { return waiter_.CheckAlive(); }

  void Abort(const std::string& reason) override { group_.abort->Set(reason); }
  bool aborted() const override { return group_.abort->IsSet(); }
  std::string DescribeState() const override;

  // ---- for a communicator that joins the ranks of several hosts ----
  // As ShmWaiter::SetWatch.
  void SetWatch(std::function<absl::Status()> watch) { waiter_.SetWatch(std::move(watch)); }
  // Returns what the members announced last, by index.
  std::vector<Operation> AnnouncedCalls() const;
  // Announce leaves FlightRecorder::Started to its caller, which knows of more ranks.
  void LeaveStartedToCaller() { starts_itself_ = false; }
  // A tick without a call: returns when all members have come to it.
  absl::Status Meet(absl::Time deadline) { return Tick(deadline); }
  // Copies what members have in each other's memory; counts in the recorder (Moved).
  void CopyInPieces(const char* from, char* to, size_t bytes) const;
  // The next Announce or Meet is this tick.
  uint64_t next_tick() const { return tick_ + 1; }
  // Returns whether all members have come to it.
  bool AllReached(uint64_t tick) const;
  FlightRecorder* recorder() const override { return group_.recorder; }
  AbortFlag* abort_flag() const { return group_.abort.get(); }
  bool may_spin() const { return group_.may_spin; }

 private:
  // ---- one call (shm_communicator.cc) ----
  // Runs `body` as one recorded call; an error finishes the communicator.
  template <typename Body>
  absl::Status Run(const Operation& operation, int64_t bytes, Body body) {
    LS_RETURN_IF_ERROR(BeginCall(operation, bytes));
    return EndCall(operation, body());
  }
  // Announces `call` (with what was copied to OwnChunk before) as the next tick, waits until all
  // ranks have announced theirs and compares the calls.
  absl::Status Enter(const CallSlot& call, absl::Time deadline);
  // Publishes the next tick and waits until all ranks have.
  absl::Status Tick(absl::Time deadline);
  bool Reached(const RankHeader& peer, uint64_t tick) const;
  bool HasLeft(const RankHeader& peer) const;
  // Waits for every peer until there(header). Says who is missing when the deadline passes.
  template <typename There>
  absl::Status WaitForPeers(absl::Time deadline, There there);
  // Returns what messages call the member `index`.
  int NameOf(int index) const { return group_.members[static_cast<size_t>(index)].rank; }
  absl::Status LeftError(int rank) const;
  absl::Status MissingError(const std::vector<int>& ranks) const;

  // ---- memory ----
  const RankHeader& header(int rank) const;
  const char* base(int rank) const;
  size_t arena_bytes(int rank) const;
  // The call that `rank` announced at Enter. Valid until the third tick after it.
  const CallSlot& CallOf(int rank) const;
  // Where chunks of the next tick are written, and where those of the last tick of `rank` (or
  // `back` ticks before it) lie.
  char* NextChunk() const;
  char* OwnChunk() const;
  const char* Chunk(int rank, uint64_t back = 0) const;
  // Returns whether every rank's announced buffer lies in its arena; checks that it is whole.
  absl::StatusOr<bool> AllInArenas(size_t bytes) const;

  // ---- collectives (shm_tree_reduce.cc, shm_collectives.cc) ----
  absl::Status FillNodes(const TreeReduceArgs& args, ElementRange slice, CallSlot* call) const;
  absl::Status GatherNodes(int64_t count, ElementRange slice);
  absl::Status ListSlices(int64_t count);
  CallSlot NewCall(const Operation& operation, const void* buffer, size_t bytes) const;
  absl::Status AllReduceInArenas(void* data, const Operation& operation, absl::Time deadline);
  absl::Status AllReduceByChunks(void* data, const Operation& operation, absl::Time deadline);
  absl::Status ReduceScatterByChunks(const void* input, void* output, const Operation& operation,
                                     absl::Time deadline);
  absl::Status AllGatherByChunks(const void* input, void* output, size_t bytes,
                                 absl::Time deadline);
  absl::Status TakeSlices(char* data, int64_t bytes) const;
  absl::Status TakeRanges(char* data, size_t bytes,
                          absl::Span<const RangeTransfer> transfers) const;
  absl::Status FindShared(absl::Span<const SharedPiece> pieces, SharedPieces* all) const;
  absl::Status BroadcastByChunks(void* data, size_t bytes, int root, absl::Time deadline);

  // ---- messages (shm_messages.cc) ----
  absl::Status SendChunks(const char* data, size_t bytes, int to, const Operation& operation,
                          absl::Time deadline);
  absl::Status RecvChunks(char* data, size_t bytes, int from, const Operation& operation,
                          absl::Time deadline);
  absl::Status WaitAcknowledged(int receiver, uint64_t index, const Operation& operation,
                                absl::Time deadline);
  // The place of the chunk `index` of `sender` for this rank.
  absl::StatusOr<int> WaitMessage(int sender, uint64_t index, absl::Time deadline);
  template <typename Ready>
  absl::Status WaitPeer(int rank, absl::Time deadline, Ready ready);

  size_t PeerIndex(int rank) const { return rank < group_.rank ? rank : rank - 1; }
  bool IsPeer(int rank) const { return rank >= 0 && rank < world_size() && rank != group_.rank; }

  const ShmGroup group_;
  ShmWaiter waiter_;
  RankHeader* const own_;
  int shards_ = 0;
  absl::Status finished_;  // the first error
  uint64_t tick_ = 0;
  uint64_t enter_tick_ = 0;
  int64_t sequence_ = 0;
  bool starts_itself_ = true;

  // TreeReduce: the nodes of all ranks, in shard order, where their parts of this rank's slice lie,
  // and the sum made from them; kept for the next call.
  std::vector<ShardRange> tree_nodes_;
  std::vector<ShardRange> last_tree_nodes_;  // those of the call before
  std::vector<Slice> slices_;                // the result of the last call
  std::vector<const float*> tree_inputs_;
  std::optional<TreeSum> tree_sum_;
  std::optional<ReducedStep> newest_;
  uint64_t newest_tick_ = 0;    // with which its ranks say that their slices are whole
  bool newest_for_all_ = true;  // without TreeReduceArgs::wanted

  // Messages.
  std::vector<uint64_t> sent_;      // chunks to each rank
  std::vector<uint64_t> received_;  // chunks from each rank
  // Who reads the chunk that lies in each place: receiver and index; -1: free.
  struct Outstanding {
    int receiver = -1;
    uint64_t index = 0;
  };
  Outstanding outstanding_[kMessagePlaces];
  int next_place_ = 0;
};

template <typename Ready>
absl::Status ShmCommunicator::WaitPeer(int rank, absl::Time deadline, Ready ready) {
  const RankHeader& peer = header(rank);
  absl::Status status =
      waiter_.Until(PeerIndex(rank), deadline, [&] { return ready(peer) || HasLeft(peer); });
  if (absl::IsDeadlineExceeded(status)) return MissingError({rank});
  LS_RETURN_IF_ERROR(status);
  return ready(peer) ? absl::OkStatus() : LeftError(rank);
}

template <typename There>
absl::Status ShmCommunicator::WaitForPeers(absl::Time deadline, There there) {
  for (const ShmWaiter::Peer& peer : waiter_.peers()) {
    if (there(*peer.header)) continue;
    absl::Status status = waiter_.Until(PeerIndex(peer.index), deadline, [&] {
      return there(*peer.header) || HasLeft(*peer.header);
    });
    if (status.ok() && there(*peer.header)) continue;
    if (status.ok()) return LeftError(peer.index);
    std::vector<int> missing;
    for (const ShmWaiter::Peer& other : waiter_.peers()) {
      if (!there(*other.header)) missing.push_back(other.index);
    }
    // A peer that is done with all of this may have ended since: no reason to fail.
    if (missing.empty() && !group_.abort->IsSet()) return absl::OkStatus();
    return absl::IsDeadlineExceeded(status) ? MissingError(missing) : status;
  }
  return absl::OkStatus();
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_SHM_SHM_COMMUNICATOR_H_
