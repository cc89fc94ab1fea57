// SPDX-License-Identifier: Apache-2.0
// The engine as the worker sees it: a training job is compiled once into a Plan, and an Executor runs
// the plan's pieces on memory that the caller gives it. The engine knows no rank, no peer, no RPC
// and no file: step and shard are arguments.
//
//   plan = Plan::Compile(spec)                               // shapes, buckets, exact memory
//   executor = Executor::Create(plan, {state, arena, ...})   // kernels prepared, nothing allocated after
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
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep::engine {

// ---- what to compile (plain values; worker/ fills them from job.proto) ----

struct MlpSpec {
  std::vector<int64_t> hidden;
};
using ModelSpec = std::variant<MlpSpec>;

struct SgdSpec {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};
using OptimizerSpec = std::variant<SgdSpec>;

struct ScheduleSpec {
  enum class Kind { kConstant, kCosine } kind = Kind::kConstant;
  int64_t total_updates = 0;
  int64_t warmup_updates = 0;
  double min_factor = 0;
};
// The factor of the learning rate at `update` (0-based). A pure function.
double ScheduleFactor(const ScheduleSpec& schedule, int64_t update);

// What one sample is.
struct InputSpec {
  std::vector<int64_t> sample_shape;  // such as {784} or {1, 28, 28}; fp32
  int64_t classes = 0;                // labels are int32 in [0, classes)
};

struct TrainSpec {
  ModelSpec model;
  InputSpec input;
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  int64_t micro_batch = 0;      // samples of one RunShard micro-batch
  int accumulate = 1;           // micro-batches of a shard
  int shards = 1;               // of the job (enters D and randomness, not the kernels)
  int64_t eval_block = 1000;    // samples of one evaluation block
  std::string precision = "fp32";
  uint64_t seed = 0;
  int threads = 1;
};

// ---- what was compiled ----

// One entry of the state table.
struct StateEntry {
  enum class Role { kParameter, kMoment, kScalar };
  std::string name;            // "0.weight" as the ecosystem names it; moments: "0.weight.momentum"
  Role role = Role::kParameter;
  std::vector<int64_t> shape;  // fp32 unless it is a scalar (int64 or double, see bytes)
  size_t offset = 0;           // bytes from the start of the state region
  size_t bytes = 0;
};

// One bucket: elements [begin, end) of the gradient vector, whose gradients are ready together.
// Buckets are listed in the order in which they become ready. The last one also holds the loss
// entries (see Plan::gradient_count).
struct Bucket {
  int64_t begin = 0;
  int64_t end = 0;
};

class Plan {
 public:
  // Builds the graph, differentiates, fuses, plans the memory. Deterministic.
  // Errors: InvalidArgument with what to change.
  static absl::StatusOr<std::shared_ptr<const Plan>> Compile(const TrainSpec& spec);
  virtual ~Plan() = default;

  virtual const TrainSpec& spec() const = 0;
  // TrainState: one table in one region. Offsets are 64-byte aligned.
  virtual const std::vector<StateEntry>& state() const = 0;
  virtual size_t state_bytes() const = 0;
  // Elements (fp32) of the gradient vector, with the loss entries at its end: sums over the shard of
  // loss, and the count of valid targets as exact integers. A multiple of 16.
  virtual int64_t gradient_count() const = 0;
  virtual const std::vector<Bucket>& buckets() const = 0;
  // Activations and workspace: the high-water mark, exact.
  virtual size_t arena_bytes() const = 0;
  virtual int64_t parameter_count() const = 0;
  // Floating point operations of one micro-batch, forward and backward.
  virtual double flops() const = 0;
  // Hex. Equal on every worker of a job, else they would compute different things.
  virtual std::string hash() const = 0;
  // The graph as text or DOT, after all passes.
  virtual std::string DumpText() const = 0;
  virtual std::string DumpDot() const = 0;
};

// Where the executor works. All regions are 64-byte aligned and outlive it.
struct Memory {
  void* state = nullptr;  // plan.state_bytes()
  void* arena = nullptr;  // plan.arena_bytes()
};

// Elements [begin, end) of the reduced gradient vector, at data[0..].
struct GradientSlice {
  int64_t begin = 0;
  int64_t end = 0;
  const float* data = nullptr;
};

struct StepResult {
  double loss = 0;          // mean over the global batch's valid targets
  int64_t valid_targets = 0;
  double learning_rate = 0;
  bool skipped = false;     // no valid target, or gradients not finite: state unchanged but the step
  bool finite = true;
};

// Sums over one evaluation block.
struct EvalSums {
  double loss = 0;
  int64_t correct = 0;
  int64_t samples = 0;
};

class Executor {
 public:
  // Prepares every kernel. Errors: InvalidArgument, ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(std::shared_ptr<const Plan> plan,
                                                          const Memory& memory);
  virtual ~Executor() = default;

  // The state of step 0: a pure function of the job (addressed randomness by parameter name).
  virtual void InitState() = 0;

  // Called before the first write of gradients of a step (the commit rule's wait), and after each
  // bucket of the shard's last micro-batch is complete. An error ends RunShard with it.
  struct Hooks {
    std::function<absl::Status()> before_gradients;
    std::function<absl::Status(int bucket)> bucket_ready;
    std::function<bool()> cancelled;  // polled between nodes; true ends RunShard with Aborted
  };

  // Forward and backward of micro-batch `micro` of `shard` at `step` on `inputs` [micro_batch, sample]
  // fp32 and `labels` [micro_batch]. Gradients go to `gradients` [gradient_count]: overwritten by
  // micro-batch 0, added to by the others. Never touches the state.
  virtual absl::Status RunShard(int64_t step, int shard, int micro, const float* inputs,
                                const int32_t* labels, float* gradients, const Hooks& hooks) = 0;

  // The optimizer step `step` (1-based; the state must be that after step - 1) on the reduced gradients,
  // read in place. Never fails once begun.
  virtual StepResult Update(int64_t step, absl::Span<const GradientSlice> reduced) = 0;

  // The step that the state is after, as written in the state itself.
  virtual int64_t committed_step() const = 0;

  // One evaluation block; `valid` <= eval_block samples count, the rest is padding.
  virtual absl::Status Evaluate(const float* inputs, const int32_t* labels, int64_t valid,
                                EvalSums* sums) = 0;

  // Hash of the gradients of one addressed micro-batch (made inputs, initial weights in scratch): equal
  // on devices that compute the same bits. Leaves the state alone. Hex.
  virtual absl::StatusOr<std::string> DeviceHash() = 0;
};

// What this device is and how kernels are chosen on it: "AMD EPYC ... avx2 1 thread, oneDNN 2.6.3".
std::string DescribeDevice(int threads);

// Clears the environment variables that would change kernels (DNNL_*, ONEDNN_*, OMP_*, MKL_*) and sets
// flush-to-zero for the calling thread. First thing in a worker's main, before any thread starts.
void PinNumerics(int threads);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_ENGINE_H_
