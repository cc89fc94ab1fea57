// SPDX-License-Identifier: Apache-2.0
// An Executor runs a plan's pieces on memory that the caller gives it; step and shard are
// arguments. It is made of narrow interfaces, one for each kind of use.
//
//   plan = Plan::Compile(spec)                               // shapes, buckets, exact memory
//   executor = Executor::Create(plan, {state, arena, ...})   // kernels prepared, nothing allocated
//   executor->InitState()                                    // or the state is copied in
//   for each step:
//     for each of my shards: executor->RunShard(step, shard, batches..., gradients)
//     ... the worker reduces the gradients ...
//     executor->Update(step, reduced slices)                 // the only writer of the state
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_ENGINE_EXECUTOR_H_
#define LOCKSTEP_ENGINE_EXECUTOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/field.h"
#include "engine/plan.h"

namespace lockstep::engine {

// A value of a running program. The memory is valid during the call that shows it.
struct TensorView {
  FieldSpec::Type type = FieldSpec::Type::kFloat32;  // meaningless when is_float64
  bool is_float64 = false;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  int64_t elements() const;
};

// Watches a program run, node by node. Thread-safety: called by the thread that runs the program.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  // False: AfterNode's outputs may be empty, and nothing is brought to the host for it.
  virtual bool reads_outputs() const { return true; }
  // Just before the node's kernel runs.
  virtual void BeforeNode(ProgramKind program, int node) = 0;
  // An error ends the run with it. `outputs` are what the node wrote; gradients of later
  // micro-batches are sums.
  virtual absl::Status AfterNode(ProgramKind program, int node,
                                 absl::Span<const TensorView> outputs) = 0;
};

// Whether cuDNN is used for convolutions where it is there, not at all, or must be there.
enum class CudnnUse { kAuto, kNever, kAlways };

// Where the executor works. All regions are 64-byte aligned and outlive it. Nothing in the arena
// outlives a call, except in plans of CompileInference: there it is the executor's alone, which
// keeps in it what it has made of the weights.
//
// A plan for a GPU has its arena, and the state that the steps change, in the GPU's memory: `arena`
// is null then, and `state` is brought up to date by PublishState alone.
struct Memory {
  void* state = nullptr;  // plan.state_bytes()
  void* arena = nullptr;  // plan.arena_bytes()
  int gpu = 0;            // which one, as the driver counts those that the process sees
  size_t gpu_limit = 0;   // bytes of its memory that may be allocated; 0: all that is free
  // The most bytes of moments that are ever held (ShardedUpdate::HoldMoments), each stretch of them
  // rounded up to 64; 0: all. A GPU has so much memory for them.
  size_t moment_bytes = 0;
  // Where RunShard's gradients will lie, gradient_count() floats each: page-locked for the copies
  // from a GPU. They outlive the executor too. May be empty.
  std::vector<float*> gradient_buffers = {};
  // Which algorithms a GPU's matrix products use is read from these files, the first that knows one
  // deciding, and measured where none does; then it is written to them. The first is the run's own.
  // Without files the library chooses.
  std::vector<std::string> tuning_files = {};
  // Whether a GPU's convolutions may be cuDNN's, which wants tuning files.
  CudnnUse cudnn = CudnnUse::kAuto;
  // Counted up while kernels run on the host, by any of their threads, several times a second: a
  // node may take minutes, and a watch tells it from one that stands still. Null: nobody watches.
  std::atomic<int64_t>* moves = nullptr;
};

// Elements [begin, end) of the gradient vector whose moments an executor has, and where the first
// half of an update puts their new weights.
struct HeldRange {
  int64_t begin = 0;
  int64_t end = 0;
  float* weights = nullptr;
};

// Elements [begin, end) of the reduced gradient vector, at data[0..].
struct GradientSlice {
  int64_t begin = 0;
  int64_t end = 0;
  const float* data = nullptr;
};

struct StepResult {
  double loss = 0;  // mean over the global batch's valid targets
  int64_t valid_targets = 0;
  double learning_rate = 0;
  bool skipped = false;  // no valid target, or gradients not finite: state unchanged but the step
  bool finite = true;
  // When not finite: the first parameter, in the order of the state, whose gradient is not, or one
  // of the two. Lives as long as the executor.
  std::string_view nonfinite;
  static constexpr std::string_view kLoss = "the loss";
  static constexpr std::string_view kStatistics = "a statistic of the batch";
  int64_t skipped_in_a_row = 0;  // steps up to this one that were not finite
  double gradient_norm = 0;      // before clipping; 0 when it is not asked for
  double loss_scale = 1;         // that the step was made with
};

// What has been decided from evaluations so far: part of the state.
struct Tracking {
  int64_t evaluated_step = 0;  // the newest evaluation that counted; 0: none
  int64_t best_step = 0;       // 0: none
  double best = 0;
  int64_t stop_step = 0;  // the newest evaluation that improved, for the early stop
  double stop_best = 0;
  int64_t stop_count = 0;  // evaluations since
};

// Sums over one evaluation block.
struct EvalSums {
  double loss = 0;
  int64_t correct = 0;
  int64_t samples = 0;
  int64_t correct_top5 = 0;  // the label is among the five largest logits
};

// Where the time of a training step went on a device with a clock of its own, in milliseconds.
struct DeviceTimes {
  double programs = 0;  // the forward and backward passes of all micro-batches
  double update = 0;
  double idle = 0;  // between these, and until the next step's first kernel: the host's
};

// Which weights an evaluation reads.
enum class Weights { kCurrent, kAverage };

// The training state of an executor, whatever the plan is for.
class StateAccess {
 public:
  virtual ~StateAccess() = default;

  // The state of step 0: a pure function of the job (addressed randomness by parameter name).
  // Touches no moments that are not held.
  virtual void InitState() = 0;

  // The state region, to be filled from elsewhere (a peer, a checkpoint): writable until EndLoad.
  // In debug builds it is read-only outside these calls, InitState and Update. A plan for inference
  // takes the weights to be the same until the next of these calls.
  virtual void* BeginLoad() = 0;
  virtual void EndLoad() = 0;
  // The same where nothing was written but what this worker does not hold: a device with memory of
  // its own takes nothing of it. REQUIRES: the region is up to date (PublishState).
  virtual void EndBorrow() { EndLoad(); }
  // Brings the state region up to date where the device has memory of its own; what others read of
  // it (a peer, a checkpoint, a hash) is that of the last call. Blocks. Errors: Internal when the
  // device fails.
  virtual absl::Status PublishState() = 0;

  // The step that the state is after, as written in the state itself.
  virtual int64_t committed_step() const = 0;

  // The part of the state that decisions about evaluations are kept in.
  virtual Tracking tracking() const = 0;
  virtual void SetTracking(const Tracking& tracking) = 0;
};

// The passes of a training step and its update.
class Training {
 public:
  virtual ~Training() = default;

  // An error of a hook ends RunShard with it. Any may be empty.
  struct Hooks {
    // Called in each RunShard just before its first write to `gradients`: the commit rule's wait,
    // which the forward pass overlaps.
    std::function<absl::Status()> before_gradients;
    // Called when a bucket is complete, in the shard's last micro-batch.
    std::function<absl::Status(int bucket)> bucket_ready;
    std::function<bool()> cancelled;  // polled between nodes; true ends RunShard with Aborted
  };

  // Forward and backward of micro-batch `micro` of `shard` at `step` on `fields`, each
  // [micro_batch, shape...]. Gradients go to `gradients` [gradient_count]: overwritten by
  // micro-batch 0, added to by the others. Never touches the state; a pure function of the state
  // and the arguments. Errors: DataLoss for an integer that is not below its field's limit, Aborted
  // when cancelled, those of the hooks.
  virtual absl::Status RunShard(int64_t step, int shard, int micro, Fields fields, float* gradients,
                                const Hooks& hooks) = 0;

  // Brings micro-batch `micro` of `shard` at `step`, which the next RunShard is to be given, to a
  // device with memory of its own, while that computes. `fields` stay as they are until then. What
  // is asked for instead finds its own. Errors: Internal when the device fails.
  virtual absl::Status StageAhead(int64_t step, int shard, int micro, Fields fields) {
    return absl::OkStatus();
  }
  // Returns whether that saves time.
  virtual bool stages_ahead() const { return false; }

  // The optimizer step `step` (1-based; the state must be that after step - 1) on the reduced
  // gradients, read in place: slices in ascending order that cover the whole vector, cut at
  // multiples of 16 elements. A skipped step advances "step" alone. Errors: Internal when the
  // device fails; its state is lost then, and every later call that can fail does.
  virtual absl::StatusOr<StepResult> Update(int64_t step,
                                            absl::Span<const GradientSlice> reduced) = 0;

  // Hash of the gradients of one addressed micro-batch (made inputs, initial weights): equal on
  // devices that compute the same bits. Uses the arena and `gradients` [gradient_count]; allocates
  // the micro-batch for a moment. REQUIRES: the state is that of InitState. Hex, and `-wgmma`
  // behind it where attention goes by the GPU's kernels of sm_90a (cuda/warpgroup_check.h). Errors:
  // ResourceExhausted.
  virtual absl::StatusOr<std::string> DeviceHash(float* gradients) = 0;

  // Of the step before the newest one; zeros where the device's clock is the host's.
  virtual DeviceTimes device_times() const { return {}; }

  // How many nodes of the programs are done which way, where a device has several, by kind and way:
  // "conv by cuDNN", "attention by wgmma", "product with what follows".
  virtual std::map<std::string, int> engines() const { return {}; }
};

// The update in two halves, with moments of a part of the state: for plans with
// TrainSpec::shard_moments.
class ShardedUpdate {
 public:
  virtual ~ShardedUpdate() = default;

  // The moments of `held` are there, no others: ranges in ascending order, cut at multiples of 16
  // elements. What is new in them is the caller's to fill, in the state region; a device with
  // memory of its own takes all of them from there, so that region is up to date (PublishState).
  // Before the first call nothing is held. REQUIRES: no update is half done. Errors: as Update.
  virtual absl::Status HoldMoments(std::vector<HeldRange> held) = 0;

  // The first half of Update: everything but the weights, their averages and the step; the new
  // weights of what is held go to the ranges' memory. A step that is skipped is done with it.
  // Errors: as Update.
  virtual absl::StatusOr<StepResult> BeginUpdate(int64_t step,
                                                 absl::Span<const GradientSlice> reduced) = 0;

  // The second half: `weights` are the new weights of everybody, in ascending order of the gradient
  // vector. REQUIRES: the step was begun and not skipped. Errors: as Update.
  virtual absl::Status FinishUpdate(int64_t step, absl::Span<const GradientSlice> weights) = 0;

  // The newest step that was begun: committed_step(), or the one after it. In every plan.
  virtual int64_t begun_step() const = 0;
};

// The first half of a sharded update where nobody has all reduced gradients: HoldSums says whose
// sums this executor makes, SumSquares makes them, and BeginUpdateWith, instead of BeginUpdate,
// begins the step when those of all are known. The new weights of what is held may go to where its
// gradients lie.
class SpreadUpdate {
 public:
  virtual ~SpreadUpdate() = default;

  // `blocks` of Plan::SumBlocks, ascending. Errors: as Update.
  virtual absl::Status HoldSums(std::vector<int> blocks) = 0;
  // Takes the reduced gradients of `step`: slices as for Update that cover those blocks, what is
  // held, and all from Plan::TailBegin on, and that stay there until the step is begun. sums[b]
  // becomes the sum of squares of each of those blocks; the rest stays as it is. The state stays as
  // it is, and this may be done again. Blocks. Errors: as Update.
  virtual absl::Status SumSquares(int64_t step, absl::Span<const GradientSlice> reduced,
                                  absl::Span<double> sums) = 0;
  // As BeginUpdate, with the gradients of the last SumSquares and the sums of all blocks.
  virtual absl::StatusOr<StepResult> BeginUpdateWith(int64_t step,
                                                     absl::Span<const double> sums) = 0;
};

// Weights on blocks of samples, without gradients.
class Inference {
 public:
  virtual ~Inference() = default;

  // What belongs to one block. An error of a hook ends the call with it. Any may be empty.
  struct BlockHooks {
    // Asked before the block and, where nodes are run one by one, before each of them; true ends
    // the block with Aborted.
    std::function<bool()> cancelled;
    // Called once while a device with memory of its own computes the block: the time to read the
    // next one and to stage it.
    std::function<absl::Status()> meanwhile;
    // The block's fields are those of the last StageBlock, which has returned OK, and unchanged.
    bool staged = false;
  };

  // One evaluation block of `fields`, each [eval_block, shape...]; the first `valid` samples count,
  // the rest is padding. REQUIRES: TrainSpec::evaluates; kAverage only with ema_decay. Errors:
  // InvalidArgument, DataLoss, Aborted (cancelled), those of the hooks.
  virtual absl::Status Evaluate(Fields fields, int64_t valid, EvalSums* sums, Weights weights,
                                const BlockHooks& hooks) = 0;
  absl::Status Evaluate(Fields fields, int64_t valid, EvalSums* sums,
                        Weights weights = Weights::kCurrent) {
    return Evaluate(fields, valid, sums, weights, {});
  }

  // The logits of one block of `fields`, as for Evaluate (labels may be anything below the field's
  // limit): [eval_block x targets of a sample, classes or more], columns from the classes on being
  // those of a padded table; valid until the next call. Only for plans of CompileInference. Errors:
  // InvalidArgument, DataLoss.
  virtual absl::StatusOr<absl::Span<const float>> Predict(Fields fields, int64_t valid,
                                                          const BlockHooks& hooks) = 0;
  absl::StatusOr<absl::Span<const float>> Predict(Fields fields, int64_t valid) {
    return Predict(fields, valid, {});
  }

  // Brings the fields of the next block to a device with memory of its own, while that computes.
  // They stay as they are until that block is done. Errors: Internal when the device fails.
  virtual absl::Status StageBlock(Fields fields) { return absl::OkStatus(); }
  // Returns whether that saves time.
  virtual bool stages_blocks() const { return false; }
};

// A text, token by token: for plans with TrainSpec::decode.
class Decoding {
 public:
  virtual ~Decoding() = default;

  // The logits after one more token of a text, at `position` (0-based): [classes], then those of a
  // padded table's other rows; valid until the next call. Reads the keys and values that the calls
  // for the positions before have kept, so positions go up by one, or back to one that was there
  // already, whose successors are then forgotten. Only for plans with TrainSpec::decode. Errors:
  // InvalidArgument (a token that the model does not know, a position that leaves a gap or is not
  // below decode_positions()).
  virtual absl::StatusOr<absl::Span<const float>> Decode(int32_t token, int64_t position) = 0;
  // Keeps what calls of Decode for `tokens` at `position` and on would keep, bit for bit, without
  // their logits; a back end may take many at a time. Errors: as Decode.
  virtual absl::Status Prefill(absl::Span<const int32_t> tokens, int64_t position);
};

// All that runs a plan. Who needs a part of it takes that part.
class Executor : public StateAccess,
                 public Training,
                 public ShardedUpdate,
                 public Inference,
                 public Decoding {
 public:
  // Prepares every kernel. Errors: InvalidArgument, ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(std::shared_ptr<const Plan> plan,
                                                          const Memory& memory);

  // Fields that lie in these `bytes` are copied to a device straight from there, page-locked where
  // that can be, until UnlockFields; the memory is there until then. They stay as they are until
  // the call that uses them returns.
  virtual void LockFields(void* memory, size_t bytes) {}
  // REQUIRES: LockFields was called with it. No copy reads it any more.
  virtual void UnlockFields(void* memory) {}

  // The same update for those who have a part of the reduced gradients; the executor's own.
  virtual SpreadUpdate* spread_update() = 0;

  // From here on `observer` watches every node of RunShard, Evaluate, Predict and Decode; null:
  // nobody, which is what an executor starts with. It outlives the executor or the next call.
  virtual void Observe(NodeObserver* observer) = 0;
};

// Memory of fields that is locked while this lives.
class LockedFields {
 public:
  // `executor` outlives this.
  LockedFields(Executor* executor, void* memory, size_t bytes)
      : executor_(executor), memory_(memory) {
    executor_->LockFields(memory_, bytes);
  }
  ~LockedFields() { executor_->UnlockFields(memory_); }
  LockedFields(const LockedFields&) = delete;
  LockedFields& operator=(const LockedFields&) = delete;

 private:
  Executor* const executor_;
  void* const memory_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXECUTOR_H_
