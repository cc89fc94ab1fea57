// SPDX-License-Identifier: Apache-2.0
// The communicator of a generation whose ranks are on several hosts: shared memory among those of
// one host, a TCP connection between any two of different hosts. Each call is announced in shared
// memory first; then the hosts compare theirs and move data. A TreeReduce that is begun with parts
// moves on a thread of its own while the caller computes. The sources: hosts_communicator.cc
// (calls, commit, errors), hosts_control.cc (calls that move data by other means),
// hosts_tree_reduce.cc, hosts_parts.cc, hosts_collectives.cc, hosts_replicate.cc (also ranges) and
// hosts_messages.cc.
// Thread-safety: as Communicator.
#ifndef LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/control_plane.h"
#include "collectives/hosts/host_groups.h"
#include "collectives/hosts/hosts_call.h"
#include "collectives/hosts/hosts_reduction.h"
#include "collectives/shm/shm_communicator.h"
#include "collectives/shm/shm_transport.h"
#include "collectives/tcp/mesh.h"
#include "collectives/tcp/mesh_thread.h"
#include "common/status.h"

namespace lockstep {

// What a communicator is made from.
struct HostsGroup {
  int64_t generation = 0;
  int rank = 0;
  HostGroups hosts;
  TreeDeal deal;
  std::vector<std::string> names;  // by rank
  const ShmTransport* transport = nullptr;
  std::unique_ptr<ShmCommunicator> local;  // of this host's ranks, by index
  char* area = nullptr;                    // kAllAreaBytes of this rank's arena
  std::vector<const char*> areas;          // of this host's ranks, by index
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<UniqueFd> wake;  // what the local communicator's abort flag writes
  bool overlaps = true;            // HostsTransport::Options::overlap
};

class HostsCommunicator : public Communicator, public ControlPlane {
 public:
  // Memory of each rank through which data of calls on other memory passes.
  static constexpr size_t kAreaBytes = 4 << 20;
  // With a word behind it: how many parts of a TreeReduce the rank has begun.
  static constexpr size_t kAllAreaBytes = kAreaBytes + 64;

  // Errors: Internal when the members' shards do not make the tree.
  static absl::StatusOr<std::unique_ptr<HostsCommunicator>> Create(HostsGroup group);
  ~HostsCommunicator() override;

  int rank() const override { return context_.rank; }
  int world_size() const override { return static_cast<int>(group_.names.size()); }
  int64_t generation() const override { return group_.generation; }
  std::vector<int> hosts() const override { return group_.hosts.host; }
  Abilities abilities() const override {
    return {.shares_memory = false, .results_with_owners = false, .keeps_reductions = false};
  }

  absl::StatusOr<absl::Span<const Slice>> TreeReduce(const TreeReduceArgs& args,
                                                     absl::Time deadline) override;
  bool reduces_parts() const override { return true; }
  // Waits for the other ranks of this host to begin the first part.
  absl::Status BeginPart(const TreeReduceArgs& args, absl::Time deadline) override;
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
  // Also says goodbye to the other hosts: this rank is done with the generation.
  void ReleaseDead() override;

  void Abort(const std::string& reason) override { group_.local->Abort(reason); }
  bool aborted() const override { return group_.local->aborted(); }
  std::string DescribeState() const override { return group_.local->DescribeState(); }

  ControlPlane* control_plane() override { return this; }
  FlightRecorder* recorder() const override { return group_.local->recorder(); }
  Operation NewOperation(OpKind kind, int64_t count, DType dtype) const override;
  absl::Status BeginCall(const Operation& operation, int64_t bytes) override;
  absl::Status Announce(const Operation& operation, const void* mine, size_t size, void* all,
                        absl::Time deadline) override;
  absl::Status EndCall(const Operation& operation, absl::Status status) override;
  void RestartNumbering() override;
  // Also hears what the other hosts have to say.
  absl::Status CheckAlive() const override;

 private:
  explicit HostsCommunicator(HostsGroup group);

  // ---- one call (hosts_communicator.cc) ----
  // Runs `body` as one recorded call; an error finishes the communicator.
  absl::Status Run(const Operation& operation, int64_t bytes,
                   const std::function<absl::Status()>& body);
  // Announces the call among the ranks of this host; `all` gets the `size` bytes of each.
  // `ends`: the call is the second one of it.
  absl::Status AnnounceHere(const Operation& operation, const void* mine, size_t size, void* all,
                            absl::Time deadline, HostsCall* ends = nullptr);
  // Exchanges it with the other hosts.
  absl::Status Exchange(HostsCall* call, absl::Time deadline) { return Drive(call, deadline); }
  absl::Status Drive(MeshUser* user, absl::Time deadline);
  absl::Status MissingError(const MeshUser& user);
  // Between ticks of the host's ranks: what they wrote is there, and nobody reads what was there.
  absl::Status Meet(absl::Time deadline) { return group_.local->Meet(deadline); }
  // While this rank waits for others of its host: sees to the connections.
  absl::Status Watch();

  // ---- collectives (hosts_collectives.cc) ----
  // What a rank gives to a host in one block.
  using GiveOf = std::function<absl::Span<const char>(int host)>;
  // Of each rank what it gave to this host; in shared memory, until the next but one block.
  using Given = std::vector<const char*>;
  // Moves one block: `bytes(from, host)` are the sizes. Its ranks can read `given` afterwards.
  absl::Status MoveBlock(const Operation& operation, const GiveOf& give,
                         const std::function<size_t(int from, int host)>& bytes, Given* given,
                         absl::Time deadline);
  // One exchange of few bytes: `given[r]` is what rank r has at `mine`.
  absl::Status MoveSmall(const Operation& operation, const void* mine, size_t bytes, Given* given,
                         absl::Time deadline);
  bool IsSmall(size_t bytes) const;
  // Announces and compares a call that moves blocks.
  absl::Status EnterLarge(const Operation& operation, absl::Time deadline);
  absl::Status AllReduceBlocks(char* data, const Operation& operation, absl::Time deadline);
  absl::Status ReduceScatterBlocks(const char* input, char* output, const Operation& operation,
                                   absl::Time deadline);
  absl::Status AllGatherBlocks(const char* input, char* output, size_t bytes,
                               const Operation& operation, absl::Time deadline);
  absl::Status BroadcastBlocks(char* data, size_t bytes, const Operation& operation,
                               absl::Time deadline);

  // ---- state for newcomers (hosts_replicate.cc) ----
  struct Holding {
    int64_t have = 0;
    int64_t place = 0;  // of the bytes, from the area on
  };
  absl::Status CopyFromHolders(char* data, int64_t bytes, const std::vector<Holding>& all,
                               const Operation& operation, absl::Time deadline);
  // Where the bytes of a rank of this host lie, by index.
  const char* LocalPlace(int index, const std::vector<Holding>& all) const;
  // The transfers, when the calls are compared: between hosts, each range goes once to each host
  // that has receivers, to one of them; then these take it from there.
  absl::Status MoveRanges(char* data, absl::Span<const RangeTransfer> transfers,
                          const std::vector<int64_t>& places, const Operation& operation,
                          absl::Time deadline);

  // ---- tree reductions (hosts_tree_reduce.cc) ----
  absl::Status CheckArgs(const TreeReduceArgs& args) const;
  absl::Status ReduceSmall(const TreeReduceArgs& args, const Operation& operation,
                           absl::Time deadline);
  absl::Status ReduceLarge(const TreeReduceArgs& args, const Operation& operation,
                           absl::Time deadline);
  // Does what follows when the data of `reduction` has moved.
  absl::Status TakeResult(const TreeReduceArgs& args, const HostsReduction& reduction,
                          absl::Time deadline);
  Operation TreeOperation(OpKind kind, const TreeReduceArgs& args);
  bool IsSmallTree(const TreeReduceArgs& args) const;
  // Announces where the nodes and the result of this rank lie.
  absl::Status AnnouncePlaces(const TreeReduceArgs& args, const Operation& operation,
                              absl::Time deadline, HostsCall* ends = nullptr);
  void ListSlices(const HostsReduction& reduction);
  // Brings what this rank wants of the listed slices into its own result, and lists that instead.
  void TakeWanted(const TreeReduceArgs& args);
  void AddSlice(ElementRange range, const float* data);
  const float* LocalNode(int rank, int node) const;
  const float* LocalResult(int index) const;

  // ---- a tree reduction that is begun with parts (hosts_parts.cc) ----
  // What a TreeReduce that has begun moves, and the parts of it.
  struct Begun {
    int64_t step = 0;
    int64_t sequence = 0;  // of the call that began it
    int64_t count = 0;
    const float* result = nullptr;
    size_t parts = 0;  // that this rank has begun
    std::unique_ptr<HostsReduction> reduction;
  };
  // The call's body.
  absl::Status BeginFirst(const TreeReduceArgs& args, const Operation& operation,
                          absl::Time deadline);
  // The body of the call that ends it.
  absl::Status EndBegun(const TreeReduceArgs& args, const Operation& operation,
                        absl::Time deadline);
  // Tells the ranks of this host that so many parts of this rank are there.
  void PublishParts(size_t parts);
  // Up to which element those of all of them are.
  int64_t ReadyEnd() const;
  // The mesh is this thread's again. An error of the thread comes again from the mesh.
  void TakeBack() const {
    if (thread_ != nullptr) thread_->TakeBack().IgnoreError();
  }

  absl::Status CheckPeer(const Operation& operation, int rank) const;
  bool IsLocal(int rank) const { return group_.hosts.host_of(rank) == context_.my_host(); }
  int local_size() const { return group_.hosts.size(context_.my_host()); }

  HostsGroup group_;
  HostsContext context_;
  std::optional<HostsSums> sums_;
  int64_t sequence_ = 0;
  int told_waiting_ = -1;  // for whom this rank has said that it waits, in the call at hand
  Operation current_;

  std::vector<int64_t> sent_, received_;  // messages, by rank

  // Blocks.
  size_t block_bytes_ = 0;
  uint64_t blocks_ = 0;          // that were moved: they take turns in two halves of the area
  std::vector<char> announced_;  // what the ranks of this host announced

  // TreeReduce.
  size_t places_ = 0;  // announced by each rank: the result and its nodes
  std::vector<int64_t> my_places_, places_of_;
  std::vector<HostsReduction::Memory> memory_;
  std::vector<float> small_;  // partials of this host, then the sum
  std::vector<Slice> slices_;
  Begun begun_;  // without a reduction: none is
  std::optional<ReducedStep> newest_;
  uint64_t newest_tick_ = 0;
  bool newest_is_own_ = false;  // it lies in this rank's memory
  // Last: it is joined before what it uses goes. Null: data moves in TreeReduce alone.
  std::unique_ptr<MeshThread> thread_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_COMMUNICATOR_H_
