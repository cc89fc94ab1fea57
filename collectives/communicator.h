// SPDX-License-Identifier: Apache-2.0
// The contract of the data plane between the workers of one generation of a job. Implementations:
// shm/ (ranks of one host), nccl/ (ranks with a GPU each, beside another), fake/ (ranks as threads,
// for tests); tcp/ follows.
//
// A Transport belongs to a worker for its whole life: it owns the memory that peers can read (the
// arena). A Communicator belongs to one generation: it is made from a transport and the list of
// members, and dies with the generation (before the transport); the arena and what lies in it stay.
//
//   transport = ShmTransport::Create(options);
//   float* grads = transport->Allocate(bytes, "gradients");        // read by peers in place
//   communicator = transport->Connect(group, deadline);            // blocks until all have come
//   slices = communicator->TreeReduce(...);                        // each step
//   communicator->PublishCommitted(step);
//
// Every call carries {generation, sequence, operation, dtype, count, root}. When the ranks' calls
// differ, every rank gets FailedPrecondition naming two ranks and both calls, before any data is
// read: they would differ again. Every wait ends with
//   Aborted           at once when the generation is aborted: by Abort, or because the life word of
//                     a peer says that it died; the message names it: "rank 2 died",
//   DeadlineExceeded  when `deadline` (a time of Clock::Real) passes; the message names the ranks
//                     that did not come and the last operation that each of them completed.
// These errors carry the rank that is to blame (group_end.h).
// After any error the communicator is finished: every later call returns that error again; only
// CommittedSteps, Describe*, Abort and destruction are of use.
//
// Thread-safety: all calls come from the worker's main thread, except Abort and Describe*, which
// are thread-safe and do not block.
#ifndef LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/shards.h"
#include "collectives/vector_memory.h"

namespace lockstep {

enum class DType : uint8_t { kFloat32, kFloat64, kInt32, kInt64, kUInt8, kBFloat16, kFloat16 };
// Bytes of one element.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kUInt8:
      return 1;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
  }
  return 0;
}

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

// How the ranks' contributions are added.
enum class ReduceOrder : uint8_t {
  kFixed,    // in rank order per element: the same bits in every run with these ranks
  kFastest,  // whatever the transport does best
};

class ControlPlane;
class FlightRecorder;

// A peer of one generation.
struct GroupMember {
  int rank = 0;
  std::string incarnation;
  std::string host;
  int64_t pid = 0;
  std::string shm_address;  // DataPlaneAddress.shm
  std::string key;          // DataPlaneAddress.key
  int life_slot = -1;       // word in the node's life page; -1: none (fakes)
  ShardRange shards;
  // Stable name of its node: members of one node share memory. Empty: of this rank's.
  std::string node;
  // Where its TCP listener is reached, best first; numeric, nothing resolves names:
  // "10.0.0.1:41234",
  // "[fd00::1]:41234". Only members of other nodes need them.
  std::vector<std::string> tcp_addresses;
};

// One generation, as a rank joins it.
struct GroupSpec {
  int64_t generation = 0;
  std::string job;
  // Of this generation alone, from the coordinator: what connections between nodes are proved with.
  // Not needed within one node.
  std::string secret;
  std::vector<GroupMember> members;  // by rank
  int rank = -1;
  // How long those of other nodes are waited for, once all of this one have met: a network that
  // swallows what is sent lets nobody know.
  absl::Duration reach_within = absl::InfiniteDuration();
};

// Elements [begin, end) of a vector.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// A whole node of the shard tree that this rank holds, in memory of Transport::vectors().
struct NodeBuffer {
  ShardRange node;
  const float* data = nullptr;
};

// A reduced vector as it lies in the owners' memory: elements [begin, end) of it are at data[0..].
// Valid until the next PublishCommitted of this rank has been answered by WaitCommitted.
struct Slice {
  int64_t begin = 0;
  int64_t end = 0;
  const float* data = nullptr;
};

// The result of a TreeReduce and the step that it belongs to.
struct ReducedStep {
  int64_t step = 0;
  std::vector<Slice> slices;
  // Every rank is known to have done its part; never so with TreeReduceArgs::wanted.
  bool whole = false;
};

struct TreeReduceArgs {
  // The whole nodes that this rank contributes, left to right (WholeNodes of its shards).
  absl::Span<const NodeBuffer> nodes;
  // Elements of the vector; the same on every rank.
  int64_t count = 0;
  // `count` elements of Transport::vectors() in which this rank may put whatever of the result it
  // owns or receives, each element at its own place. May be the buffer of one of the nodes, else it
  // must not overlap them; null when `count` is 0. A transport that gathers results elsewhere
  // leaves it as it is. What it holds outside the slices of the result is undefined.
  float* result = nullptr;
  // For messages: the step and bucket.
  int64_t step = 0;
  int bucket = 0;
  // What BeginPart may be asked for: the vector cut at multiples of 16 elements, in order. The same
  // on every rank.
  absl::Span<const ElementRange> parts = {};
  // By rank: the elements of the result that it needs, ascending and apart, from and to multiples
  // of 16 or the vector's end. Empty: everybody needs all. The same on every rank. The result of a
  // rank covers what it needs, and may cover more.
  absl::Span<const std::vector<ElementRange>> wanted = {};
  // Elements [0, rounded) are sums in bf16: the sum of each node is rounded to it, to nearest even,
  // and stays in floats; those of `nodes` are already. Hosts send each other such elements in 16
  // bits. The same on every rank; 0 where Abilities::rounds is false.
  int64_t rounded = 0;
};

// Internal when TreeReduceArgs::result overlaps a node at another place than its own.
absl::Status CheckResult(const TreeReduceArgs& args);

// Elements [begin, end) of a vector, which rank `from` has and those of `to` get.
struct RangeTransfer {
  int64_t begin = 0;
  int64_t end = 0;
  int from = 0;
  std::vector<int> to;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual int64_t generation() const = 0;
  // By rank: its host. Hosts are numbered from 0 by their lowest rank.
  virtual std::vector<int> hosts() const {
    return std::vector<int>(static_cast<size_t>(world_size()), 0);
  }

  // What not every communicator gives. Whoever relies on it asks first.
  struct Abilities {
    // Share: ranks read each other's memory where it lies.
    bool shares_memory = true;
    // Of a TreeReduce, rank r's slice (SliceOf) and nothing else is written to its `result`.
    bool results_with_owners = true;
    // NewestReduce tells of a reduction that this rank did its part in, whoever died meanwhile.
    // Else only of those that are whole in the memory that this rank reads: a rank that is behind
    // the others takes the state from them in the next generation (Replicate). With
    // TreeReduceArgs::wanted that is its own memory.
    bool keeps_reductions = true;
    // TreeReduceArgs::rounded.
    bool rounds = true;
  };
  virtual Abilities abilities() const { return {}; }

  // The sum over all shards along the fixed tree. Every rank adds its own slice in tree order from
  // the nodes of all and publishes it; the result is the list of all slices (or those that `wanted`
  // asks for), in order, in place in the owners' memory, and valid until the next TreeReduce.
  // Blocks. The bits depend on shards and values alone, not on the ranks.
  virtual absl::StatusOr<absl::Span<const Slice>> TreeReduce(const TreeReduceArgs& args,
                                                             absl::Time deadline) = 0;

  // Returns whether BeginPart is of use: the transport reduces while the caller computes what comes
  // next.
  virtual bool reduces_parts() const { return false; }
  // Begins the TreeReduce of `args` with its next part, [0] first, whose elements are there in all
  // nodes; they stay as they are until TreeReduce, with the same `args`, has reduced the parts that
  // were not begun and waited for all. Waits for the other ranks to begin the part too, not for its
  // sums. Every rank begins the same parts. REQUIRES: reduces_parts().
  virtual absl::Status BeginPart(const TreeReduceArgs& args, absl::Time deadline);

  // In place on any memory; `order` kFixed adds in rank order. Blocks.
  virtual absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                                 ReduceOrder order, absl::Time deadline) = 0;
  // `input` has world_size x count elements; rank r gets the sum of everyone's part r.
  virtual absl::Status ReduceScatter(const void* input, void* output, int64_t count, DType dtype,
                                     ReduceOp op, absl::Time deadline) = 0;
  // `output` has world_size x count elements, by rank.
  virtual absl::Status AllGather(const void* input, void* output, int64_t count, DType dtype,
                                 absl::Time deadline) = 0;
  virtual absl::Status Broadcast(void* data, int64_t count, DType dtype, int root,
                                 absl::Time deadline) = 0;
  // Point to point; messages between two ranks arrive in order. Other ranks take no part. A Send
  // may return before its Recv is called (the last 512 KiB are buffered), but must not rely on it.
  virtual absl::Status Send(const void* data, int64_t count, DType dtype, int to,
                            absl::Time deadline) = 0;
  virtual absl::Status Recv(void* data, int64_t count, DType dtype, int from,
                            absl::Time deadline) = 0;
  virtual absl::Status Barrier(absl::Time deadline) = 0;
  // Parts of a vector of `count` floats at `data` (any memory of the transport; with all ranks that
  // of Transport::vectors(), or with all that of Allocate and ReservePages): each transfer brings
  // its elements from the sender's vector to the same place in those of its receivers. The
  // transfers are the same on every rank, and nothing that one sends is what one receives. Blocks
  // until this rank has sent and received its own; after an error what it was to receive is
  // undefined.
  virtual absl::Status ExchangeRanges(float* data, int64_t count,
                                      absl::Span<const RangeTransfer> transfers,
                                      absl::Time deadline);
  // Gives the `bytes` at `data` (memory from Transport::Allocate) of the ranks that `have` them to
  // those that have not, whose `data` is overwritten. The holders' bytes must be equal: holder i,
  // in rank order, gives the slice SliceOf(bytes, holders, i). At least one rank must have them;
  // when all do, nothing moves. Blocks until all have theirs. After an error the bytes of a rank
  // without are undefined.
  virtual absl::Status Replicate(void* data, int64_t bytes, bool have, absl::Time deadline) = 0;

  // What Share is about; at most kMostShared pieces.
  static constexpr size_t kMostShared = 8;
  struct SharedPiece {
    const void* data = nullptr;
    size_t bytes = 0;
  };
  using SharedPieces = std::vector<std::vector<const char*>>;  // by rank and piece
  // Tells everyone where these pieces of this rank's memory (from the transport) lie, and returns
  // where everyone's do: the result's [r][i] is piece i of rank r, to be read. All ranks bring as
  // many pieces of the same sizes. Blocks until all have come. The addresses are good for the
  // communicator's life, also when ranks have died. What is read there when is up to the callers.
  // Errors: Unimplemented without Abilities::shares_memory.
  virtual absl::StatusOr<SharedPieces> Share(absl::Span<const SharedPiece> pieces,
                                             absl::Time deadline) = 0;

  // The commit rule: no rank writes gradients of step s+1 before every member has published
  // committed >= s.
  // Release-publishes that this rank's state is that after `step`. Does not block.
  virtual void PublishCommitted(int64_t step) = 0;
  // Blocks until every member has published committed >= step.
  virtual absl::Status WaitCommitted(int64_t step, absl::Time deadline) = 0;
  // Returns what each rank has published in this generation so far, by rank; -1: nothing yet. Also
  // after an abort (a dead peer's memory stays mapped).
  virtual std::vector<int64_t> CommittedSteps() const = 0;

  // The newest TreeReduce of which this rank has done its own part, ended or aborted. When it is
  // not known to be whole, it is so if any member has committed that step. It stays so until this
  // rank publishes that step too; also when peers have died or joined a later generation. Empty:
  // there is none, or without Abilities::keeps_reductions it is not whole here (yet).
  virtual std::optional<ReducedStep> NewestReduce() const = 0;

  // Between generations: gives up the memory of peers that have died, which this rank keeps from
  // going back to the system, except what of NewestReduce() it may still need. What Share told of
  // them is not to be read any more. A later death takes a later call. Does not block.
  virtual void ReleaseDead() {}

  // Returns what lets another communicator announce its calls through this one; null: it cannot.
  virtual ControlPlane* control_plane() { return nullptr; }

  // Ends every present and future wait of this communicator with Aborted(reason). Thread-safe.
  virtual void Abort(const std::string& reason) = 0;
  // Returns whether Abort was called. Thread-safe.
  virtual bool aborted() const = 0;

  // Returns what this rank last did and waits for, in a sentence: "all_reduce 4071 f32[25600000],
  // waiting for rank 2". Thread-safe.
  virtual std::string DescribeState() const = 0;
};

// The worker's side of the data plane that outlives generations.
class Transport {
 public:
  virtual ~Transport() = default;

  // `bytes` of zeroed memory, 64-byte aligned, that peers can read; for the worker's life. Space is
  // reserved now, so that a lack is an error here and not a signal later.
  // Errors: ResourceExhausted, naming `what` and how much was asked for and left.
  virtual absl::StatusOr<void*> Allocate(size_t bytes, const std::string& what) = 0;

  // Page-aligned memory that peers can read, for the worker's life, of which no page is there until
  // CommitPages says so. Errors: ResourceExhausted, naming `what`.
  virtual absl::StatusOr<void*> ReservePages(size_t bytes, const std::string& what) = 0;
  // Has the pages of [data, data + bytes), a part of reserved memory, in memory: they may be used
  // from now on. Those that are there already keep what is in them; others may hold anything.
  // Errors: ResourceExhausted, naming `what`.
  virtual absl::Status CommitPages(void* data, size_t bytes, const std::string& what) = 0;
  // Gives the pages that lie whole in [data, data + bytes), a part of reserved memory, back to the
  // system. Neither this rank nor a peer touches the part before it is committed again.
  virtual void ReleasePages(void* data, size_t bytes) = 0;

  // Where vectors for TreeReduce lie: in what Allocate gives, unless the transport reduces in other
  // memory.
  virtual VectorMemory& vectors() = 0;

  // Joins the generation: reaches every member and maps its memory; returns when all members have
  // connected to this one too. Blocks. Errors: Aborted, DeadlineExceeded (names the missing),
  // FailedPrecondition (a peer of another build), ResourceExhausted (more ranks than can be).
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupSpec& group,
                                                                absl::Time deadline) = 0;

  // Ends a Connect that blocks with Aborted. Thread-safe.
  virtual void AbortConnect(int64_t generation, const std::string& reason) = 0;

  // Returns what peers need to reach this worker.
  virtual std::string address() const = 0;
  virtual std::string key() const = 0;
  // The TCP port on which members of other nodes reach this worker; 0: it has none.
  virtual int tcp_port() const { return 0; }
  // Returns whether its generations may be over hosts, so that no rank relies on reading another's
  // memory.
  virtual bool spans_hosts() const { return false; }

  // The last operations of this worker, over all generations. Thread-safe to read.
  virtual const FlightRecorder& flight_recorder() const = 0;
};

// The slice of a vector of `count` elements that `rank` owns: all ranks' slices, in rank order,
// make the vector. Boundaries are multiples of 16 elements (one cache line of floats), so a slice
// may be empty. REQUIRES: count >= 0, 0 <= rank < world_size.
ElementRange SliceOf(int64_t count, int world_size, int rank);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_
