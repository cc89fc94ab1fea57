// SPDX-License-Identifier: Apache-2.0
// The training state of a job with train.zero_stage: 1 (docs/adr/0011): the optimizer's moments are
// cut into shards, each is on two ranks, and a worker has memory for those alone that it holds. The
// rest of the state is on every rank, as ever.
//
//   sharded = ShardedState::Create(...)                    // nothing is held
//   each generation:  sharded->Agree(communicator, ...)    // deals and copies; see recovery.h
//   each step:        communicator->TreeReduce(...)        // of what is wanted()
//                     sharded->ShareSums(communicator, step, reduced)
//                     sharded->Begin(step, reduced)
//                     sharded->Finish(communicator, step)  // everyone's new weights
//
// Where vectors lie on the host, ranks read each other's reduced gradients and new weights in
// place. Where they lie on GPUs (Parts::sums), a rank gets the reduced gradients that it needs, the
// ranks share the sums of squares of all, which decide on the update, and new weights are sent. The
// same holds where ranks are on several hosts (Parts::apart), and nobody reads anything of another
// rank: moments, too, are sent, to who takes over a shard and to who writes them into a checkpoint.
//
// A rank that has begun a step and not finished it is bound to it: the next generation's Agree
// finishes it. The sources: sharded_state.cc (memory, steps), sharded_copies.cc (checkpoints,
// checks) and sharded_recovery.cc (Agree). Thread-safety: confined to the worker's main thread, but
// for Locate, which may be called from anywhere between two calls of Agree.
#ifndef LOCKSTEP_WORKER_STATE_SHARDED_STATE_H_
#define LOCKSTEP_WORKER_STATE_SHARDED_STATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "engine/engine.h"
#include "worker/state/host_deal.h"
#include "worker/state/recovery.h"
#include "worker/state/shard_holders.h"
#include "worker/state/spread_deal.h"
#include "worker/state/state_policy.h"

namespace lockstep::worker {

class ShardedState : public StatePolicy {
 public:
  struct Parts {
    const engine::Plan* plan = nullptr;  // with TrainSpec::shard_moments
    engine::Executor* executor = nullptr;
    // The executor itself, unless a test looks at what it is asked.
    engine::ShardedUpdate* halves = nullptr;
    // Null where ranks read each other's vectors.
    engine::SpreadUpdate* spread = nullptr;
    Transport* transport = nullptr;
    char* state = nullptr;       // reserved memory of plan->state_bytes()
    float* gradients = nullptr;  // the buffer that holds the owned slice: `vector_count` elements
    // One of these: reserved memory of SpillBytes(vector_count), where vectors lie on the host; or,
    // with `spread`, a number for each of plan->SumBlocks(), which peers can read, though those on
    // GPUs read their own; or, also with `spread`, nothing.
    float* spill = nullptr;
    double* sums = nullptr;
    bool apart = false;
    // With `apart`: by rank of `world`, the bytes of the state that it copies for a checkpoint, in
    // ascending order. May be empty.
    std::function<std::vector<std::vector<engine::StateRange>>(int world)> copies;
    int64_t vector_count = 0;
    int shards = 0;  // OptimizerShards of the job
  };
  // New weights that lie in the slice that a rank owns need a place of their own.
  static size_t SpillBytes(int64_t vector_count);

  // Takes the memory of what every rank has; moments follow with the first deal. What `parts` has
  // outlives this. Errors: ResourceExhausted.
  static absl::Status HoldShared(const engine::Plan& plan, Transport* transport, char* state);
  explicit ShardedState(const Parts& parts);

  // When both holders of a shard are gone the error is Aborted: all members go back to step 0,
  // whose state they have, or to the step before where a survivor has kept that. Further errors:
  // ResourceExhausted when there is no memory for the share of this rank.
  absl::Status Agree(Communicator* communicator, int64_t start_step, StateAgreement* agreement,
                     absl::Time deadline) override;

  // Returns whether every rank of this generation holds everything, so that a step is the ordinary
  // one.
  bool all_held() const { return all_held_; }
  absl::Span<const std::vector<ElementRange>> wanted() const override { return deal_.wanted; }
  bool publishes() const override { return true; }
  bool copies_read_peers() const override { return !parts_.apart; }
  // After the reduction: all ranks have what they need of it, and know enough to begin the step. An
  // error leaves a step that this rank may begin when another has. Blocks. Errors: those of the
  // communicator and of SpreadUpdate::SumSquares.
  absl::Status ShareSums(Communicator* communicator, int64_t step,
                         absl::Span<const engine::GradientSlice> reduced,
                         absl::Time deadline) override;
  // The first half of `step`, or all of it where everybody holds everything, when the sums of all
  // ranks are there. Errors: those of the executor.
  absl::StatusOr<engine::StepResult> Begin(
      int64_t step, absl::Span<const engine::GradientSlice> reduced) override;
  // The second half of `step`, which this rank has begun: waits until all have, and takes the new
  // weights. Blocks. Errors: those of the communicator; the step stays half done.
  absl::Status Finish(Communicator* communicator, int64_t step, absl::Time deadline) override;

  // Returns the bytes of the state region that this rank has now, also between an Agree that failed
  // and the next one, ascending: what everybody has, and the moments of the shards that it holds.
  std::vector<engine::StateRange> present() const;
  std::optional<std::vector<engine::StateRange>> held() const override { return present(); }
  bool in_parts() const override { return !all_held_; }
  // Where byte `offset` of the state lies, here or in a peer's memory, and how much of `*bytes`
  // from there on. Moments of peers are those after this rank's committed step until it takes part
  // in the next reduction.
  const char* Locate(size_t offset, size_t* bytes) const override;
  // Brings the state regions of all ranks up to date, for Locate; with Parts::apart each gets the
  // moments that it copies. Collective, unless there is neither. Errors: those of the communicator
  // and of StateAccess::PublishState; ResourceExhausted.
  absl::Status Publish(Communicator* communicator, absl::Time deadline) override;
  // As worker::CheckReplicas, on what several ranks have.
  absl::Status CheckReplicas(Communicator* communicator, int64_t step,
                             absl::Time deadline) const override;

 private:
  // What each rank says of itself; it travels as bytes.
  static constexpr int kMostShards = 1024;
  struct Row {
    int64_t committed;
    int64_t begun;
    int64_t evaluated;
    engine::Tracking tracking;
    int64_t own_begin;  // the slice that its new weights do not lie in
    int64_t own_end;
    uint64_t holds[kMostShards / 64];
  };
  // A stretch of the state region that holds moments of one shard.
  struct Place {
    size_t begin = 0;
    size_t end = 0;
    int shard = 0;
  };
  struct Piece {
    int64_t begin = 0;
    int64_t end = 0;
    bool in_slice = false;
  };

  Row MyRow(int64_t evaluated_step) const;
  // Which of the ranks that stand after `start_step` hold what.
  ShardHolders HoldersIn(const std::vector<Row>& rows, int64_t start_step) const;
  // Returns whether this rank has the sums of all blocks in memory of its own. Elsewhere it reads
  // those of the others where they lie, also after a death: shared memory keeps a dead rank's until
  // the step is done, and what reduces on devices does not.
  bool own_sums() const { return parts_.apart || plan().spec().device != engine::DeviceKind::kCpu; }
  // Unless all are apart.
  absl::Status ShareMemory(Communicator* communicator, absl::Time deadline);
  // For a new job: everybody has what is zero.
  absl::Status BeginFresh(Communicator* communicator);
  // Finishes the step that this rank has begun, from the new weights of `holders`.
  absl::Status FinishFrom(const std::vector<Row>& rows, const ShardHolders& holders, int64_t step);
  // The same for all who have begun it and not finished it. Collective.
  absl::Status FinishHalfDone(Communicator* communicator, const std::vector<Row>& rows,
                              const ShardHolders& holders, int64_t step, absl::Time deadline);
  // Brings this rank what it is to have. Who has the newer state may let go of this rank's part of
  // it when `has_its_part` is set.
  absl::Status Bring(Communicator* communicator, const std::vector<Row>& rows,
                     const ShardHolders& before, StateAgreement* agreement, bool* has_its_part,
                     absl::Time deadline);
  // Gives everything but the moments to those who do not hold the state of the start step.
  absl::Status AgreeOnShared(Communicator* communicator, const std::vector<Row>& rows,
                             StateAgreement* agreement, absl::Time deadline);
  // Copies the moments that this rank is to hold by `after` and does not hold yet.
  absl::Status Transfer(Communicator* communicator, const ShardHolders& before,
                        const ShardHolders& after, bool* has_its_part, absl::Time deadline);
  struct Copied {
    int shard = 0;
    int from = 0;  // rank
  };
  // REQUIRES: there is memory for `copies` (TakeMoments).
  absl::Status Copy(Communicator* communicator, const std::vector<Copied>& copies,
                    const std::vector<RangeTransfer>& transfers, absl::Time deadline);
  // Brings these ranges of the state, in floats, from rank to rank. Collective. REQUIRES: the state
  // is open (BeginLoad) where any of them is for this one.
  absl::Status SendState(Communicator* communicator, const std::vector<RangeTransfer>& transfers,
                         absl::Time deadline);
  static ElementRange InFloats(const engine::StateRange& range) {
    return {static_cast<int64_t>(range.begin / sizeof(float)),
            static_cast<int64_t>(range.end / sizeof(float))};
  }
  // Brings what each rank copies for a checkpoint and does not hold into its state region.
  absl::Status Borrow(Communicator* communicator, absl::Time deadline);
  // Reserves memory for these bytes of the state.
  absl::Status TakeMoments(std::vector<engine::StateRange> ranges);
  uint64_t HashOf(int shard, const char* base) const;
  // Gives the memory of moments that are not held back.
  void DropMoments();
  // Returns whether this rank has the whole state again that it kept (old_).
  bool PutOldBack();
  // Parts of the state after `step` are gone: back to what this rank kept of the step before, or to
  // step 0.
  absl::Status GiveUp(int64_t step, const std::string& why);

  // Lets go of what this rank does not hold by `holders`, and prepares the steps of a generation.
  absl::Status SetHolders(const Communicator& communicator, ShardHolders holders);
  // The rest of it with Parts::spread.
  absl::Status DealSpread(int world);
  // Puts what this rank wants of the reduced gradients into its own vector.
  void TakeWanted(absl::Span<const engine::GradientSlice> reduced);
  // The elements of a shard, cut where the slice [own_begin, own_end) begins and ends.
  std::vector<Piece> PiecesOf(int shard, int64_t own_begin, int64_t own_end) const;
  // Where `rank` with that slice has the new weights from element `at` on.
  const float* NewWeights(int rank, const Piece& piece, int64_t own_begin) const;
  ElementRange Range(int shard) const {
    return SliceOf(plan().gradient_count(), parts_.shards, shard);
  }
  const engine::Plan& plan() const { return *parts_.plan; }
  // Nobody reads another rank's vector.
  bool spread() const { return parts_.spread != nullptr; }
  // The whole vector in this rank's memory.
  engine::GradientSlice Vector() const { return {0, plan().gradient_count(), parts_.gradients}; }
  bool Holds(int shard) const { return held_[static_cast<size_t>(shard)]; }

  const Parts parts_;
  std::vector<Place> places_;                             // of all shards, ascending
  std::vector<std::vector<engine::StateRange>> moments_;  // of each shard
  size_t moments_begin_ = 0;  // between these lies what may not be there
  size_t moments_end_ = 0;
  std::vector<bool> held_;  // moments after the begun step
  ElementRange own_;        // of the vector, in the generation of the newest deal
  // The whole state that this rank gave up for a newer one, until it knows that each rank has its
  // part of that.
  std::optional<OldState> old_;

  // Of the generation.
  int rank_ = 0;
  std::vector<int> hosts_;  // by rank
  bool all_held_ = false;
  // Of each rank: state, gradients and spill; or state, sums; or, apart, nothing.
  Communicator::SharedPieces shared_;
  ShardHolders holders_;
  std::vector<engine::GradientSlice> gathered_;  // everyone's new weights
  GradientDeal deal_;                            // with Parts::spread, unless all is held
  std::vector<RangeTransfer> transfers_;
  std::vector<double> sums_;    // own_sums: of all blocks
  int64_t summed_step_ = 0;     // of which they are
  std::vector<bool> borrowed_;  // apart, of places_: there for a checkpoint, though not held
  int64_t borrowed_step_ = -1;  // after which; -1: nothing is
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_SHARDED_STATE_H_
