// SPDX-License-Identifier: Apache-2.0
// The engine as the worker sees it: a training job is compiled once into a Plan, and an Executor
// runs the plan's pieces on memory that the caller gives it. The engine knows no rank, no peer, no
// RPC and no file: step and shard are arguments.
//
//   plan = Plan::Compile(spec)                               // shapes, buckets, exact memory
//   executor = Executor::Create(plan, {state, arena, ...})   // kernels prepared, nothing allocated
//   executor->InitState()                                    // or the state is copied in
//   for each step:
//     for each of my shards: executor->RunShard(step, shard, batches..., gradients)
//     ... the worker reduces the gradients ...
//     executor->Update(step, reduced slices)                 // the only writer of the state
//
// Thread-safety: Plan is immutable after Compile. Executor is confined to the worker's main thread.
#ifndef LOCKSTEP_ENGINE_ENGINE_H_
#define LOCKSTEP_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/field.h"
#include "engine/train_spec.h"

namespace lockstep::engine {

// One entry of the state table.
struct StateEntry {
  enum class Role { kParameter, kMoment, kScalar, kAverage, kStatistic };
  enum class Type { kFloat32, kInt64, kFloat64, kBFloat16, kFloat16 };
  std::string name;  // "0.weight" as the ecosystem names it; moments: "0.weight.momentum";
                     // averages: "0.weight.ema"
  Role role = Role::kParameter;
  Type type =
      Type::kFloat32;  // scalars: "step", "update_count", "growth_count" int64, "loss_scale" double
  std::vector<int64_t> shape;  // empty for a scalar
  size_t offset = 0;           // bytes from the start of the state region
  size_t bytes = 0;
};

// Bytes [begin, end) of the state region.
struct StateRange {
  size_t begin = 0;
  size_t end = 0;
};

// One bucket: elements [begin, end) of the gradient vector, whose gradients are ready together.
// Buckets are listed in the order in which they become ready. The last one also holds the loss
// entries (see Plan::gradient_count).
struct Bucket {
  int64_t begin = 0;
  int64_t end = 0;
};

// Elements [begin, end) of the gradient vector.
struct GradientRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// One of a plan's programs.
enum class ProgramKind { kTraining, kEvaluation, kDecode };

// One node of a program as tools see it. Nodes are listed in the order in which they run.
struct NodeInfo {
  int id = 0;
  std::string op;
  std::string name;                 // of the layer, may be empty
  std::string text;                 // one line with its shapes
  std::vector<std::string> shapes;  // of its outputs: "f32[64,256]"
  // For each output: the (node, output) of the graph before all passes that it is. Equal for every
  // plan of the same job, whatever its passes are.
  std::vector<std::pair<int, int>> origins;
  bool runs = false;         // false: a leaf or a view, which has no kernel
  double flops = 0;          // a multiplication and an addition count as two
  double bytes = 0;          // read and written, each value once
  size_t live_bytes = 0;     // of the arena that hold something while it runs
  size_t scratch_bytes = 0;  // of these, its workspace
};

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

class Plan {
 public:
  // Builds the graph, differentiates, fuses, plans the memory. Deterministic.
  // Errors: InvalidArgument with what to change.
  static absl::StatusOr<std::shared_ptr<const Plan>> Compile(const TrainSpec& spec);
  // The evaluation program of `spec` alone, for Executor::Evaluate and Predict. The state table has
  // no moments, the gradient vector no elements. The optimizer, schedule, micro_batch, accumulate
  // and shards of `spec` are not looked at. Errors: as Compile.
  static absl::StatusOr<std::shared_ptr<const Plan>> CompileInference(const TrainSpec& spec);
  virtual ~Plan() = default;

  virtual const TrainSpec& spec() const = 0;
  // TrainState: one table in one region. Offsets are 64-byte aligned.
  virtual const std::vector<StateEntry>& state() const = 0;
  virtual size_t state_bytes() const = 0;
  // Elements (fp32) of the gradient vector, with the loss entries in its last 16: the shard's sum
  // of losses, then its count of valid targets as two floats (high, low: see ops/counts.h) whose
  // sums over shards are exact. A multiple of 16; the gaps between gradients are 0. Between the
  // gradients and these lie the batch statistics, summed over micro-batches and shards likewise.
  virtual int64_t gradient_count() const = 0;
  virtual const std::vector<Bucket>& buckets() const = 0;
  // Activations and workspace: the high-water mark, exact.
  virtual size_t arena_bytes() const = 0;
  // Bytes of a GPU's memory that an executor takes, with Memory::moment_bytes; 0 for a CPU's plan.
  virtual size_t device_bytes(size_t moment_bytes) const = 0;
  virtual int64_t parameter_count() const = 0;
  // Whether losses are scaled, as in fp16.
  virtual bool scales_loss() const = 0;
  // How far values are computed again; see passes/recompute.h.
  virtual int recompute_level() const = 0;
  // Floating point operations of one micro-batch, forward and backward.
  virtual double flops() const = 0;
  // Where the moments of elements [begin, end) of the gradient vector lie in the state region, in
  // ascending order.
  virtual std::vector<StateRange> MomentsOf(int64_t begin, int64_t end) const = 0;
  // The blocks of the gradient vector whose sums of squares decide on an update: at most 64 Ki
  // elements of each parameter, then what lies between parameters, then all that follows them.
  virtual std::vector<GradientRange> SumBlocks() const = 0;
  // Where the gradients of the last parameter end: from there on lie statistics, loss and count, in
  // one block or more.
  virtual int64_t TailBegin() const = 0;
  // Hex. Equal on every worker of a job, else they would compute different things.
  virtual std::string hash() const = 0;
  // The graph as text or DOT, after all passes.
  virtual std::string DumpText() const = 0;
  virtual std::string DumpDot() const = 0;
  // Positions that Executor::Decode can keep; 0 without TrainSpec::decode.
  virtual int64_t decode_positions() const = 0;
  // The nodes of a program; none of one that the plan does not have.
  virtual std::vector<NodeInfo> Nodes(ProgramKind program) const = 0;
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
  // The most bytes of moments that are ever held (Executor::HoldMoments), each stretch of them
  // rounded up to 64; 0: all. A GPU has so much memory for them.
  size_t moment_bytes = 0;
  // Where RunShard's gradients will lie, gradient_count() floats each: page-locked for the copies
  // from a GPU. They outlive the executor too. May be empty.
  std::vector<float*> gradient_buffers = {};
  // Which algorithms a GPU's matrix products use is read from these files, the first that knows one
  // deciding, and measured where none does; then all of it is written to them. Without files the
  // library chooses.
  std::vector<std::string> tuning_files = {};
  // Whether a GPU's convolutions may be cuDNN's, which wants tuning files.
  CudnnUse cudnn = CudnnUse::kAuto;
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
  // When not finite: the first parameter, in the order of the state, whose gradient is not, or
  // "the loss". Lives as long as the executor.
  std::string_view nonfinite;
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

class Executor {
 public:
  // Prepares every kernel. Errors: InvalidArgument, ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(std::shared_ptr<const Plan> plan,
                                                          const Memory& memory);
  virtual ~Executor() = default;

  // The state of step 0: a pure function of the job (addressed randomness by parameter name).
  // Touches no moments that are not held.
  virtual void InitState() = 0;

  // An error of a hook ends RunShard with it. Any may be empty.
  struct Hooks {
    // Called in each RunShard just before its first write to `gradients`: the commit rule's wait,
    // which the forward pass overlaps.
    std::function<absl::Status()> before_gradients;
    // Called when a bucket is complete, in the shard's last micro-batch.
    std::function<absl::Status(int bucket)> bucket_ready;
    std::function<bool()> cancelled;  // polled between nodes; true ends RunShard with Aborted
  };

  // The state region, to be filled from elsewhere (a peer, a checkpoint): writable until EndLoad.
  // In debug builds it is read-only outside these calls, InitState and Update. A plan for inference
  // takes the weights to be the same until the next of these calls.
  virtual void* BeginLoad() = 0;
  virtual void EndLoad() = 0;
  // Brings the state region up to date where the device has memory of its own; what others read of
  // it (a peer, a checkpoint, a hash) is that of the last call. Blocks. Errors: Internal when the
  // device fails.
  virtual absl::Status PublishState() = 0;

  // Forward and backward of micro-batch `micro` of `shard` at `step` on `fields`, each
  // [micro_batch, shape...]. Gradients go to `gradients` [gradient_count]: overwritten by
  // micro-batch 0, added to by the others. Never touches the state; a pure function of the state
  // and the arguments. Errors: DataLoss for an integer that is not below its field's limit, Aborted
  // when cancelled, those of the hooks.
  virtual absl::Status RunShard(int64_t step, int shard, int micro, Fields fields, float* gradients,
                                const Hooks& hooks) = 0;

  // The optimizer step `step` (1-based; the state must be that after step - 1) on the reduced
  // gradients, read in place: slices in ascending order that cover the whole vector, cut at
  // multiples of 16 elements. A skipped step advances "step" alone. Errors: Internal when the
  // device fails; its state is lost then, and every later call that can fail does.
  virtual absl::StatusOr<StepResult> Update(int64_t step,
                                            absl::Span<const GradientSlice> reduced) = 0;

  // ---- Updates of a plan with TrainSpec::shard_moments ----
  // The moments of `held` are there, no others: ranges in ascending order, cut at multiples of 16
  // elements. What is new in them is the caller's to fill, in the state region; a device with
  // memory of its own takes all of them from there, so that region is up to date (PublishState).
  // Before the first call nothing is held. REQUIRES: no update is half done. Errors: as Update.
  virtual absl::Status HoldMoments(std::vector<HeldRange> held);
  // The first half of Update: everything but the weights, their averages and the step; the new
  // weights of what is held go to the ranges' memory. A step that is skipped is done with it.
  // Errors: as Update.
  virtual absl::StatusOr<StepResult> BeginUpdate(int64_t step,
                                                 absl::Span<const GradientSlice> reduced);
  // The first half where nobody has all reduced gradients, on devices with memory of their own:
  // HoldSums says whose sums this executor makes, SumSquares makes them, and BeginUpdateWith begins
  // the step when those of all are known.
  // `blocks` of Plan::SumBlocks, ascending. Errors: as Update.
  virtual absl::Status HoldSums(std::vector<int> blocks);
  // Takes the reduced gradients of `step`: slices as for Update that cover those blocks, what is
  // held, and all from Plan::TailBegin on. sums[b] becomes the sum of squares of each of those
  // blocks; the rest stays as it is. The state stays as it is, and this may be done again. Blocks.
  // Errors: as Update.
  virtual absl::Status SumSquares(int64_t step, absl::Span<const GradientSlice> reduced,
                                  absl::Span<double> sums);
  // As BeginUpdate, with the gradients of the last SumSquares and the sums of all blocks.
  virtual absl::StatusOr<StepResult> BeginUpdateWith(int64_t step, absl::Span<const double> sums);
  // The second half: `weights` are the new weights of everybody, in ascending order of the gradient
  // vector. REQUIRES: the step was begun and not skipped. Errors: as Update.
  virtual absl::Status FinishUpdate(int64_t step, absl::Span<const GradientSlice> weights);
  // The newest step that was begun: committed_step(), or the one after it.
  virtual int64_t begun_step() const { return committed_step(); }

  // The step that the state is after, as written in the state itself.
  virtual int64_t committed_step() const = 0;

  // One evaluation block of `fields`, each [eval_block, shape...]; the first `valid` samples count,
  // the rest is padding. `cancelled`, unless it is empty, is asked before the block and, where
  // nodes are run one by one, before each of them. REQUIRES: kAverage only with ema_decay. Errors:
  // InvalidArgument, DataLoss, Aborted (cancelled).
  virtual absl::Status Evaluate(Fields fields, int64_t valid, EvalSums* sums, Weights weights,
                                const std::function<bool()>& cancelled) = 0;
  absl::Status Evaluate(Fields fields, int64_t valid, EvalSums* sums,
                        Weights weights = Weights::kCurrent) {
    return Evaluate(fields, valid, sums, weights, {});
  }

  // The part of the state that decisions about evaluations are kept in.
  virtual Tracking tracking() const = 0;
  virtual void SetTracking(const Tracking& tracking) = 0;

  // Hash of the gradients of one addressed micro-batch (made inputs, initial weights): equal on
  // devices that compute the same bits. Uses the arena and `gradients` [gradient_count]; allocates
  // the micro-batch for a moment. REQUIRES: the state is that of InitState. Hex.
  // Errors: ResourceExhausted.
  virtual absl::StatusOr<std::string> DeviceHash(float* gradients) = 0;

  // The logits of one block of `fields`, as for Evaluate (labels may be anything below the field's
  // limit): [eval_block x targets of a sample, classes or more], columns from the classes on being
  // those of a padded table; valid until the next call. Only for plans of CompileInference. Errors:
  // InvalidArgument, DataLoss.
  virtual absl::StatusOr<absl::Span<const float>> Predict(Fields fields, int64_t valid) = 0;

  // The logits after one more token of a text, at `position` (0-based): [classes], then those of a
  // padded table's other rows; valid until the next call. Reads the keys and values that the calls
  // for the positions before have kept, so positions go up by one, or back to one that was there
  // already, whose successors are then forgotten. Only for plans with TrainSpec::decode. Errors:
  // InvalidArgument (a token that the model does not know, a position that leaves a gap or is not
  // below decode_positions()).
  virtual absl::StatusOr<absl::Span<const float>> Decode(int32_t token, int64_t position) = 0;

  // Of the step before the newest one; zeros where the device's clock is the host's.
  virtual DeviceTimes device_times() const { return {}; }

  // From here on `observer` watches every node of RunShard, Evaluate, Predict and Decode; null:
  // nobody, which is what an executor starts with. It outlives the executor or the next call.
  virtual void Observe(NodeObserver* observer) = 0;
};

// The same of GPU `index`: "NVIDIA H200 (sm_90, ...), CUDA 13.0, cuBLASLt 130100".
// Errors: FailedPrecondition when it cannot be used, with what is missing.
absl::StatusOr<std::string> DescribeGpu(int index);

// What this device is and how kernels are chosen on it: "AMD EPYC (family 25 ...), avx2, 1 thread,
// gcc 12.2.0".
std::string DescribeDevice(int threads);

// Clears the environment variables that would change kernels (DNNL_*, ONEDNN_*, OMP_*, MKL_*,
// CUBLASLT_*, CUDNN_*, NVIDIA_TF32_OVERRIDE) and
// sets flush-to-zero for the calling thread. First thing in a worker's main, before any thread
// starts.
void PinNumerics(int threads);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_ENGINE_H_
