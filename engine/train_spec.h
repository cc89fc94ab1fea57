// SPDX-License-Identifier: Apache-2.0
// What to compile into a Plan: a training job as plain values, which worker/ fills from the job's
// message. Thread-safety: plain data.
#ifndef LOCKSTEP_ENGINE_TRAIN_SPEC_H_
#define LOCKSTEP_ENGINE_TRAIN_SPEC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "common/field.h"
#include "engine/model_spec.h"

namespace lockstep::engine {

struct SgdSpec {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

// Adam, or AdamW when `decoupled`.
struct AdamSpec {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;
};

struct LambSpec {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
};

// Hidden weight matrices are Muon's, the rest AdamW's.
struct MuonSpec {
  double lr = 1e-3;
  double momentum = 0.95;
  double weight_decay = 0.1;
  double eps = 1e-7;
  bool nesterov = true;
  int ns_steps = 5;
  bool match_rms_adamw = false;
  AdamSpec adamw = {.weight_decay = 0.01, .decoupled = true};
  std::vector<std::string> adamw_match = {};  // further parameters that are AdamW's, as globs
};
using OptimizerSpec = std::variant<SgdSpec, AdamSpec, LambSpec, MuonSpec>;

// Settings of the parameters whose names match the glob.
struct ParameterGroup {
  std::string match = {};
  double lr_scale = 1;
  std::optional<double> weight_decay = {};  // none: the optimizer's
};

// Which fields a kind reads is said in docs/training.md; the others stay as they are.
struct ScheduleSpec {
  enum class Kind {
    kConstant,
    kCosine,
    kStep,
    kLinear,
    kPolynomial,
    kExponential,
    kOneCycle,
    kWsd
  } kind = Kind::kConstant;
  int64_t total_updates = 0;
  int64_t warmup_updates = 0;
  double min_factor = 0;
  double gamma = 0.1;
  double power = 1;
  int64_t step_updates = 0;
  std::vector<int64_t> milestones = {};
  double pct_start = 0.3;
  double div_factor = 25;
  double final_div_factor = 1e4;
  enum class Shape { kLinear, kCosine, kSqrt } shape = Shape::kLinear;  // of a fall
  int64_t decay_updates = 0;
};
// The factor of the learning rate at `update` (0-based). A pure function.
double ScheduleFactor(const ScheduleSpec& schedule, int64_t update);

// Returns whether TrainSpec::precision may be `name`.
bool KnowsPrecision(const std::string& name);

// What a sample is made of.
struct InputSpec {
  std::vector<FieldSpec> fields;  // at most 8; the one named "labels" holds the targets
  int64_t classes = 0;            // targets are int32 in [0, classes); a negative one is ignored
};

// Samples of fp32 "inputs" with one label each.
InputSpec ClassificationInput(std::vector<int64_t> sample_shape, int64_t classes);

// A batch: one array for each field of InputSpec, in its order.
using Fields = absl::Span<const void* const>;

// The patterns of fusion (passes/fusion.h), each to be switched off by itself.
struct FusionPatterns {
  bool relu = true;         // relu and its gradient, in linear layers
  bool activations = true;  // gelu and silu, in linear layers
  bool addends = true;      // sums, in linear layers and their gradients
  bool residuals = true;    // sums, in dropout and in gradients of norms and tables
  bool pools = true;        // pooling, in convolutions
  bool images = true;       // relu and sums, in convolutions and batch norms
  bool norms = true;        // batch norms, in convolutions outside training
  bool heads = true;        // a wide head and its loss, by strips of the logits
  bool loss = true;         // the loss and its gradient in one pass
  bool weights = true;      // rounding weights to bf16, in linear layers and their gradients
};
struct FusionPattern {
  const char* name;  // passes.fuse_NAME of a job
  bool FusionPatterns::*on;
};
inline constexpr FusionPattern kFusionPatterns[] = {
    {"relu", &FusionPatterns::relu},       {"activations", &FusionPatterns::activations},
    {"addends", &FusionPatterns::addends}, {"residuals", &FusionPatterns::residuals},
    {"pools", &FusionPatterns::pools},     {"images", &FusionPatterns::images},
    {"norms", &FusionPatterns::norms},     {"heads", &FusionPatterns::heads},
    {"loss", &FusionPatterns::loss},       {"weights", &FusionPatterns::weights},
};

// Passes that can be switched off: to look for a fault, or to prove that they change nothing.
struct PassOptions {
  bool fuse = true;          // off: other roundings, within a stated tolerance
  FusionPatterns patterns;   // what is fused, with `fuse`
  bool in_place = true;      // off: the same bits in more memory
  bool reuse_memory = true;  // off: the same bits in more memory
  // What depends on the weights alone is made once for them: in inference, and on GPUs for all
  // micro-batches of a step where there are several. Off: the same bits in less memory and later.
  bool keep_constants = true;
  // On GPUs, where kernels of sm_90a do attention with dropout: the forward pass leaves a bit for
  // each probability that stays, and the backward pass draws none. Off: the same bits in less
  // memory and more time.
  bool keep_dropout = true;
  int64_t bucket_elements = 262144;  // a bucket closes when it has as many: 1 MiB
  // On GPUs: what the library for products can do with their results (gelu by tanh and its
  // gradient, sums for bias gradients) is left to it. Off: other roundings.
  bool epilogues = true;
  // On GPUs: a job's only shard is one recording, not one for each bucket. Off: the same bits.
  bool step_graph = true;
  // With step_graph: the update, too, is part of that recording. The same bits.
  bool whole_step_graph = false;
  // Of 65536 elements: so many come to a GPU at once, of moments that are not there.
  int64_t moment_blocks = 64;
  // On CPUs: whether factors in bf16 are multiplied pair by pair, or widened while they are packed:
  // the same bits. Empty: where the CPU has an instruction for it.
  std::optional<bool> bf16_pairs;
  // "portable", "avx2", "avx512" or "avx512_bf16": kernels for less than this CPU has; the same
  // bits. Empty: LOCKSTEP_ISA's, or its best.
  std::string isa;
};

// Dynamic loss scaling, which fp16 needs: torch.amp.GradScaler's rule and defaults. All factors are
// powers of two, so that scaling changes no bit of what does not overflow.
struct LossScaleSpec {
  double init = 65536;
  double growth = 2;     // after `interval` steps in a row without an overflow
  double backoff = 0.5;  // after an overflow, whose step is skipped
  int64_t interval = 2000;
};

// Which values of the forward pass are computed again in the backward pass instead of being kept.
struct RecomputeSpec {
  enum class Mode {
    kNone,
    kSelective,  // what is cheap
    kBlocks,     // everything between the models' block borders, but for the last block where that
                 // frees nothing
    kAuto,       // the least that brings the training step's arena to `arena_bytes` or less
  } mode = Mode::kNone;
  size_t arena_bytes = 0;
};

// What a plan's programs run on. It decides where they put their values, not what they compute.
enum class DeviceKind { kCpu, kCuda };

struct TrainSpec {
  DeviceKind device = DeviceKind::kCpu;
  ModelSpec model;
  InputSpec input;
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  int64_t micro_batch = 0;    // samples of one RunShard micro-batch
  int accumulate = 1;         // micro-batches of a shard
  int shards = 1;             // of the job (enters D and randomness, not the kernels)
  int64_t eval_block = 1000;  // samples of one evaluation block
  bool evaluates = true;      // without, there is no room for evaluation blocks, and none is run
  // fp32, tf32, bf16, fp16, pure_bf16 or pure_fp16: see passes/precision.h.
  std::string precision = "fp32";
  // With bf16: the factors of linear layers' products in FP8, see passes/fp8.h; in training alone.
  bool fp8 = false;
  LossScaleSpec loss_scale;  // read in fp16 and pure_fp16
  RecomputeSpec recompute;
  uint64_t seed = 0;
  int threads = 1;
  PassOptions passes;
  double label_smoothing = 0;  // of the training loss alone; evaluation has none
  // No weight decay for parameters with ParameterSpec::decay off.
  bool spare_norms_and_biases = false;
  std::vector<ParameterGroup> groups;  // the first that matches decides
  double clip_norm = 0;                // of all gradients together; 0: not clipped
  double ema_decay = 0;                // of the weights' moving average; 0: there is none
  // The moments may be there in part, and an update is made in two halves: see
  // Executor::HoldMoments.
  bool shard_moments = false;
  // For a GPU: the moments stay in the state region, and come to the device while they are updated.
  bool offload_moments = false;
  // Evaluation and prediction alone: no gradients, no moments, no training step. See
  // Plan::CompileInference.
  bool inference = false;
  // With `inference`: the decode program too, for Executor::Decode.
  bool decode = false;

  // The most samples that the programs take at once.
  int64_t most_samples() const {
    if (inference) return eval_block;
    return evaluates ? std::max(micro_batch, eval_block) : micro_batch;
  }
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_TRAIN_SPEC_H_
