// SPDX-License-Identifier: Apache-2.0
// The compiled plan: two programs (a training micro-batch and an evaluation block) over one arena,
// the state table and the gradient layout. Thread-safety: immutable after Compile.
#ifndef LOCKSTEP_ENGINE_EXEC_PLAN_H_
#define LOCKSTEP_ENGINE_EXEC_PLAN_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/graph/backend.h"
#include "engine/models/model.h"
#include "engine/optim/groups.h"
#include "engine/optim/optimizer.h"
#include "engine/passes/buckets.h"
#include "engine/passes/fusion.h"
#include "engine/passes/memory.h"
#include "engine/passes/precision.h"

namespace lockstep::engine {

// The moving average of "0.weight" is the state entry "0.weight.ema". The averages lie as the
// parameters do, one constant distance behind them.
inline constexpr const char* kAverageSuffix = ".ema";
// The evaluation program's output that an inference plan has beside its sums.
inline constexpr const char* kLogitsOutput = "logits";
// Leaves of the decode program.
inline constexpr const char* kDecodeToken = "decode_token";
inline constexpr const char* kDecodePosition = "decode_position";
// The same of the prefill program, which takes them as the first and the second field.
inline constexpr const char* kPrefillTokens = "prefill_tokens";
inline constexpr const char* kPrefillPositions = "prefill_positions";

// A graph after all passes, with its memory.
struct Program {
  Graph graph;
  MemoryPlan memory;
};

// A copy of a weight in 16 bits.
struct WeightCopy {
  DType type = DType::kBF16;
  size_t offset = 0;  // bytes, in the arena
  size_t bytes = 0;
};

class CompiledPlan : public Plan {
 public:
  // Runs all passes for `spec` on this CPU; takes milliseconds. Errors: InvalidArgument (a model,
  // optimizer or shape that is not possible).
  static absl::StatusOr<std::shared_ptr<const CompiledPlan>> Make(const TrainSpec& spec);

  const TrainSpec& spec() const override { return spec_; }
  const std::vector<StateEntry>& state() const override { return state_; }
  size_t state_bytes() const override { return state_bytes_; }
  int64_t gradient_count() const override { return layout_.count; }
  const std::vector<Bucket>& buckets() const override { return layout_.buckets; }
  size_t arena_bytes() const override { return arena_bytes_; }
  size_t device_bytes(size_t moment_bytes) const override;
  bool keeps_constants() const override;
  int64_t parameter_count() const override;
  int recompute_level() const override { return recompute_level_; }
  double flops() const override { return train_.graph.Flops(); }
  std::vector<StateRange> MomentsOf(int64_t begin, int64_t end) const override;
  std::vector<GradientRange> SumBlocks() const override;
  int64_t TailBegin() const override;
  std::string hash() const override { return hash_; }
  std::string math_hash() const override { return math_hash_; }
  std::string older_math_hash() const override { return older_math_hash_; }
  std::string kernels() const override;
  std::string DumpText() const override;
  std::string DumpDot() const override {
    return spec_.inference ? evaluate_.graph.ToDot() : train_.graph.ToDot();
  }
  std::vector<NodeInfo> Nodes(ProgramKind program) const override;

  const Program& train() const { return train_; }
  const Program& evaluate() const { return evaluate_; }
  // Empty without TrainSpec::decode.
  const Program& decode() const { return decode_; }
  // How many positions a prefill program takes at once. They make no logits, and are empty without
  // TrainSpec::decode, on GPUs, and the long one where the other takes all positions.
  int64_t prefill_rows(ProgramKind kind) const;
  // The program of that kind.
  const Program& program(ProgramKind kind) const;
  int64_t decode_positions() const override {
    return spec_.decode ? model_->decode_positions() : 0;
  }
  // Where in the arena keys and values are kept, beyond all that programs write over.
  size_t kept_offset() const { return kept_offset_; }
  const GradientLayout& layout() const { return layout_; }
  const Model& model() const { return *model_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  const Precision& precision() const { return precision_; }
  bool scales_loss() const override { return precision_.type == DType::kF16 && !spec_.inference; }
  const CpuTargets& targets() const { return targets_; }
  // Of what no node of a program does.
  const CpuTarget& target() const { return targets_[OpClass::kRows]; }
  // One for each of model().parameters().
  const std::vector<ParameterSettings>& settings() const { return settings_; }
  // Where in the arena a training step reads copies of weights in 16 bits that the update writes as
  // it writes the weights, by parameter. Not empty: all that is made once of the weights is these.
  const std::map<std::string, WeightCopy>& weight_copies() const { return weight_copies_; }
  // Of the arena, which the update may use.
  size_t optimizer_scratch_bytes() const;
  // The same for one parameter.
  size_t UpdateScratchBytes(const ParameterSpec& parameter) const;
  // How the state has a weight.
  DType WeightType(const ParameterSpec& parameter) const;
  // Bytes from a parameter to its average. REQUIRES: there are averages.
  size_t average_distance() const { return average_distance_; }
  // REQUIRES: the table has it.
  const StateEntry& Entry(const std::string& name) const;
  int64_t targets_per_sample() const;
  // D: the targets that a step nominally has.
  int64_t nominal_targets() const {
    return spec_.micro_batch * targets_per_sample() * spec_.accumulate * spec_.shards;
  }

 private:
  // The leaf of a training step that its gradients begin with.
  static constexpr const char* kLossSeed = "loss_seed";

  explicit CompiledPlan(const TrainSpec& spec) : spec_(spec) {}
  // Checks whether the moments can be there in part. Errors: InvalidArgument.
  absl::Status CheckShardedMoments() const;
  // Checks whether they can stay on the host. Errors: InvalidArgument.
  absl::Status CheckOffload() const;
  absl::Status ChooseTargets();
  void MakeStateTable();
  // After CompileEvaluation, whose program is in the hashes.
  absl::Status CompileTraining();
  FusionOptions FusionFor(bool training) const;
  // The training step before recomputation: differentiated, fused, in its precision. With
  // `keeps_weights` all that reads a weight shares what is made of it.
  absl::StatusOr<Graph> BuildTraining(bool keeps_weights) const;
  // Takes `graph` as the training step and places its gradients, which is all that the hashes are
  // of.
  absl::Status PlaceTraining(const Graph& graph);
  // The same of the graph in which attention leaves dropout's bits, where the back end wants them;
  // and plans its memory.
  absl::Status LayOutTraining(const Graph& graph);
  // The level of recomputation that the spec asks for.
  absl::StatusOr<int> ChooseRecompute(const Graph& graph);
  // Names of the weights that the state has in 16 bits.
  std::set<std::string> HalfWeights() const;
  bool DecodesInBf16() const;
  MemoryOptions MemoryOptionsFor(bool keep_constants) const;
  // Returns whether a training step keeps what it makes of the weights alone: on GPUs, since
  // products on a CPU round the weights that they read; not where memory is so short that values
  // are made again. With one micro-batch only what the update may write.
  bool KeepsWeights() const {
    return spec_.passes.keep_constants && spec_.device == DeviceKind::kCuda &&
           (spec_.accumulate > 1 || UpdateMayCopy()) &&
           spec_.recompute.mode == RecomputeSpec::Mode::kNone;
  }
  // Returns whether attention may leave dropout's bits in a training step.
  bool KeepsDropout() const {
    return spec_.passes.keep_dropout && spec_.device == DeviceKind::kCuda;
  }
  // Returns whether nothing stands against an update that writes copies of the weights: its scratch
  // would lie over them, and what FP8 makes of a weight wants all of it.
  bool UpdateMayCopy() const { return !spec_.fp8 && optimizer_scratch_bytes() == 0; }
  // As weight_copies(), of the training step as it is laid out.
  std::map<std::string, WeightCopy> FindWeightCopies() const;
  absl::Status CompileEvaluation();
  absl::Status CompileDecode();
  // A decode program of `rows` positions.
  absl::StatusOr<Graph> BuildDecode(int64_t rows, bool logits) const;
  // Where keys and values lie, by their leaves and outputs: they are read and written in one place.
  std::map<Value, Storage> PlaceKept(const Graph& graph) const;
  // Of all programs and what is kept between them.
  void SizeArena();
  // Leaves for the parameters, and for running statistics outside training.
  void AddParameterLeaves(Graph* graph, bool training, ModelInputs* inputs) const;
  // The model on `batch` samples, with leaves for the fields and the parameters.
  struct Forward {
    std::map<std::string, Value> parameters;
    Value logits;
    Value labels;  // [rows of the logits]
  };
  Forward BuildForward(Graph* graph, int64_t batch, bool training) const;
  // Where the leaves of `graph` lie, beside the values that `fixed` names already.
  std::map<Value, Storage> BindLeaves(const Graph& graph,
                                      std::map<Value, Storage> fixed = {}) const;
  Attrs LossAttrs(const Graph& graph, Value logits) const;
  std::string MakeHash(const ScheduleSpec& schedule) const;
  // Makes math_hash() of what is placed now.
  void KeepMathHash();

  const TrainSpec spec_;
  CpuTargets targets_;
  std::unique_ptr<const Backend> backend_;  // null until the targets are chosen
  Precision precision_;
  int recompute_level_ = 0;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<ParameterSettings> settings_;
  size_t average_distance_ = 0;
  std::vector<StateEntry> state_;
  std::map<std::string, size_t> entry_of_;  // index in state_, by name
  size_t state_bytes_ = 0;
  Program train_;
  std::map<std::string, WeightCopy> weight_copies_;
  Program evaluate_;
  Program decode_;
  Program prefill_, long_prefill_;
  size_t kept_offset_ = 0;
  size_t kept_bytes_ = 0;
  GradientLayout layout_;
  size_t arena_bytes_ = 0;
  std::string hash_;
  std::string math_hash_;
  std::string older_math_hash_;
};

// Checks whether `token` may be decoded at `position` after `decoded` ones. Errors:
// InvalidArgument, as Executor::Decode.
absl::Status CheckDecode(const CompiledPlan& plan, int32_t token, int64_t position,
                         int64_t decoded);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_PLAN_H_
