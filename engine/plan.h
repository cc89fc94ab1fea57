// SPDX-License-Identifier: Apache-2.0
// A training job, compiled once: shapes, buckets, the state's table, exact memory.
// Thread-safety: immutable after Compile.
#ifndef LOCKSTEP_ENGINE_PLAN_H_
#define LOCKSTEP_ENGINE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
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
enum class ProgramKind { kTraining, kEvaluation, kDecode, kPrefill, kLongPrefill };

// One node of a program as tools see it. Nodes are listed in the order in which they run.
struct NodeInfo {
  int id = 0;
  std::string op;
  std::string name;                 // of the layer, may be empty
  std::string text;                 // one line with its shapes
  std::vector<std::string> shapes;  // of its outputs: "f32[64,256]"
  // For each output: the (node, output) of the graph before all passes that it is. Equal for every
  // plan of the same job, whatever its passes are.
  // Negative nodes are of values that no such graph has.
  std::vector<std::pair<int, int>> origins;
  std::string format;        // of what is rounded to FP8: "e4m3", "e5m2"; else empty
  bool runs = false;         // false: a leaf or a view, which has no kernel
  bool scaled = false;       // what it makes depends on the loss's scale
  double flops = 0;          // a multiplication and an addition count as two
  double bytes = 0;          // read and written, each value once
  size_t live_bytes = 0;     // of the arena that hold something while it runs
  size_t scratch_bytes = 0;  // of these, its workspace
};

class Plan {
 public:
  // Builds the graph, differentiates, fuses, plans the memory. Deterministic.
  // Errors: InvalidArgument with what to change.
  static absl::StatusOr<std::shared_ptr<const Plan>> Compile(const TrainSpec& spec);
  // The evaluation program of `spec` alone, for Inference. The state table has
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
  // Activations and workspace of what the spec has the plan run: the high-water mark, exact.
  virtual size_t arena_bytes() const = 0;
  // Bytes of a GPU's memory that an executor takes, with Memory::moment_bytes; 0 for a CPU's plan.
  virtual size_t device_bytes(size_t moment_bytes) const = 0;
  // Returns whether a training step keeps some of the arena for what it made of the weights alone:
  // PassOptions::keep_constants where it has an effect.
  virtual bool keeps_constants() const = 0;
  virtual int64_t parameter_count() const = 0;
  // Returns whether losses are scaled, as in fp16.
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
  // Equal for plans whose steps compute the same: hash() without the run's length where the
  // schedule does not depend on it, and where the level of recomputation follows from memory, which
  // changes no bit, of RecomputeSpec::Mode::kAuto that of the same plan with nothing computed
  // again, of kBlocks that of the plan with all blocks computed again.
  virtual std::string math_hash() const = 0;
  // The same with the run's length, which older versions wrote into checkpoints.
  virtual std::string older_math_hash() const = 0;
  // Returns which instruction set's kernels do the work of a CPU: "avx512", or, where several do,
  // the kinds of work of each: "rows/images avx2, products/attention ... avx512". Says so where
  // LOCKSTEP_ISA names it.
  virtual std::string kernels() const = 0;
  // The graph as text or DOT, after all passes.
  virtual std::string DumpText() const = 0;
  virtual std::string DumpDot() const = 0;
  // Positions that Decoding::Decode can keep; 0 without TrainSpec::decode.
  virtual int64_t decode_positions() const = 0;
  // The nodes of a program; none of one that the plan does not have.
  virtual std::vector<NodeInfo> Nodes(ProgramKind program) const = 0;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PLAN_H_
