// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/job_plan.h"

#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "job/meaning/defaults.h"
#include "worker/setup/model_plan.h"

namespace lockstep::worker {
namespace {

// Adam, AdamW, and the AdamW inside Muon have the same fields.
template <typename Message>
engine::AdamSpec AdamSpecOf(const Message& adam, bool decoupled) {
  return {adam.lr(), adam.beta1(), adam.beta2(), adam.eps(), adam.weight_decay(), decoupled};
}

engine::MuonSpec MuonSpecOf(const Muon& muon) {
  engine::MuonSpec spec;
  spec.lr = muon.lr();
  spec.momentum = muon.momentum();
  spec.weight_decay = muon.weight_decay();
  spec.nesterov = muon.nesterov();
  spec.ns_steps = muon.ns_steps();
  spec.match_rms_adamw = muon.adjust_lr() == "match_rms_adamw";
  spec.adamw = AdamSpecOf(muon.adamw(), /*decoupled=*/true);
  spec.adamw_match = {muon.exclude().begin(), muon.exclude().end()};
  return spec;
}

absl::StatusOr<engine::OptimizerSpec> OptimizerSpecOf(const Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case Optimizer::kSgd: {
      const Sgd& sgd = optimizer.sgd();
      return engine::SgdSpec{sgd.lr(), sgd.momentum(), sgd.dampening(), sgd.weight_decay(),
                             sgd.nesterov()};
    }
    case Optimizer::kAdam:
      return AdamSpecOf(optimizer.adam(), /*decoupled=*/false);
    case Optimizer::kAdamw:
      return AdamSpecOf(optimizer.adamw(), /*decoupled=*/true);
    case Optimizer::kLamb: {
      const Lamb& lamb = optimizer.lamb();
      return engine::LambSpec{lamb.lr(), lamb.beta1(), lamb.beta2(), lamb.eps(),
                              lamb.weight_decay()};
    }
    case Optimizer::kMuon:
      return MuonSpecOf(optimizer.muon());
    case Optimizer::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("train.optimizer names no optimizer");
}

std::vector<engine::ParameterGroup> GroupsOf(const Optimizer& optimizer) {
  std::vector<engine::ParameterGroup> groups;
  for (const ParameterGroup& group : optimizer.groups()) {
    groups.push_back({group.match(), group.has_lr_scale() ? group.lr_scale() : 1, {}});
    if (group.has_weight_decay()) groups.back().weight_decay = group.weight_decay();
  }
  return groups;
}

engine::ScheduleSpec::Shape ShapeOf(const std::string& name) {
  if (name == "cosine") return engine::ScheduleSpec::Shape::kCosine;
  if (name == "sqrt") return engine::ScheduleSpec::Shape::kSqrt;
  return engine::ScheduleSpec::Shape::kLinear;
}

engine::ScheduleSpec ScheduleSpecOf(const Schedule& schedule, int64_t total_updates) {
  engine::ScheduleSpec spec;
  spec.total_updates = total_updates;
  spec.warmup_updates = schedule.warmup_steps();
  using Kind = engine::ScheduleSpec::Kind;
  switch (schedule.kind_case()) {
    case Schedule::kCosine:
      spec.kind = Kind::kCosine;
      spec.min_factor = schedule.cosine().min_factor();
      break;
    case Schedule::kStep:
      spec.kind = Kind::kStep;
      spec.step_updates = schedule.step().every();
      spec.milestones = {schedule.step().milestones().begin(), schedule.step().milestones().end()};
      spec.gamma = schedule.step().gamma();
      break;
    case Schedule::kLinear:
      spec.kind = Kind::kLinear;
      spec.min_factor = schedule.linear().min_factor();
      break;
    case Schedule::kPolynomial:
      spec.kind = Kind::kPolynomial;
      spec.power = schedule.polynomial().power();
      spec.min_factor = schedule.polynomial().min_factor();
      break;
    case Schedule::kExponential:
      spec.kind = Kind::kExponential;
      spec.gamma = schedule.exponential().gamma();
      break;
    case Schedule::kOneCycle:
      spec.kind = Kind::kOneCycle;
      spec.pct_start = schedule.one_cycle().pct_start();
      spec.div_factor = schedule.one_cycle().div_factor();
      spec.final_div_factor = schedule.one_cycle().final_div_factor();
      spec.shape = ShapeOf(schedule.one_cycle().shape());
      break;
    case Schedule::kWsd:
      spec.kind = Kind::kWsd;
      spec.decay_updates = schedule.wsd().decay_steps();
      spec.min_factor = schedule.wsd().min_factor();
      spec.shape = ShapeOf(schedule.wsd().shape());
      break;
    case Schedule::kConstant:
    case Schedule::KIND_NOT_SET:
      break;
  }
  return spec;
}

}  // namespace

absl::StatusOr<data::Source> DataSource(const Train& train) {
  switch (train.data().kind_case()) {
    case Data::kFashionMnist: {
      const ImageFolder& folder = train.data().fashion_mnist();
      data::FashionMnistSource source;
      source.path = folder.path();
      if (folder.has_mean()) source.mean = folder.mean();
      if (folder.has_std()) source.std = folder.std();
      return source;
    }
    case Data::kIdx: {
      const Idx& idx = train.data().idx();
      data::IdxSource source{idx.train_images(), idx.train_labels(), idx.test_images(),
                             idx.test_labels()};
      if (idx.has_mean()) source.mean = idx.mean();
      if (idx.has_std()) source.std = idx.std();
      return source;
    }
    case Data::kSynthetic: {
      const SyntheticClassification& made = train.data().synthetic();
      data::SyntheticSource source;
      if (made.train_samples() > 0) source.train_samples = made.train_samples();
      if (made.test_samples() > 0) source.test_samples = made.test_samples();
      if (made.features() > 0) source.features = made.features();
      source.shape = {made.shape().begin(), made.shape().end()};
      if (made.classes() > 0) source.classes = made.classes();
      source.seed = train.seed();
      return source;
    }
    case Data::kText: {
      const Text& text = train.data().text();
      data::TextSource source;
      source.path = text.path();
      if (text.length() > 0) source.length = text.length();
      if (text.has_test_fraction()) source.test_fraction = text.test_fraction();
      source.masked = text.masked();
      source.seed = train.seed();
      return source;
    }
    case Data::kTokens: {
      const Tokens& tokens = train.data().tokens();
      data::TokensSource source;
      source.train = tokens.train();
      source.test = tokens.test();
      if (tokens.length() > 0) source.length = tokens.length();
      if (tokens.vocab() > 0) source.vocab = tokens.vocab();
      if (tokens.train_samples() > 0) source.train_samples = tokens.train_samples();
      if (tokens.test_samples() > 0) source.test_samples = tokens.test_samples();
      source.seed = train.seed();
      return source;
    }
    case Data::kCifar10: {
      const Cifar10& cifar = train.data().cifar10();
      return data::Cifar10Source{cifar.path(),
                                 {cifar.mean().begin(), cifar.mean().end()},
                                 {cifar.std().begin(), cifar.std().end()}};
    }
    case Data::kNpy: {
      const Npy& npy = train.data().npy();
      return data::NpySource{npy.train_inputs(),
                             npy.train_labels(),
                             npy.test_inputs(),
                             npy.test_labels(),
                             {npy.mean().begin(), npy.mean().end()},
                             {npy.std().begin(), npy.std().end()},
                             npy.vocab(),
                             npy.has_padding() ? npy.padding() : -1};
    }
    case Data::kCsv: {
      const Csv& csv = train.data().csv();
      data::CsvSource source{csv.train(), csv.test()};
      if (!csv.label().empty()) source.label = csv.label();
      if (!csv.header().empty()) source.header = csv.header();
      return source;
    }
    case Data::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("train.data names no data");
}

data::Augment AugmentOf(const Train& train) {
  const Augment& augment = train.data().augment();
  return {augment.crop_padding(), augment.flip(), train.seed()};
}

namespace {

absl::StatusOr<engine::RecomputeSpec::Mode> RecomputeModeOf(const std::string& name) {
  using Mode = engine::RecomputeSpec::Mode;
  if (name.empty() || name == "none") return Mode::kNone;
  if (name == "selective") return Mode::kSelective;
  if (name == "blocks") return Mode::kBlocks;
  if (name == "auto") return Mode::kAuto;
  return absl::InvalidArgumentError(
      absl::StrCat("recompute ", name, " is not none, selective, blocks or auto"));
}

engine::FusionPatterns PatternsOf(const Passes& passes) {
  engine::FusionPatterns on;
  if (passes.has_fuse_relu()) on.relu = passes.fuse_relu();
  if (passes.has_fuse_activations()) on.activations = passes.fuse_activations();
  if (passes.has_fuse_addends()) on.addends = passes.fuse_addends();
  if (passes.has_fuse_residuals()) on.residuals = passes.fuse_residuals();
  if (passes.has_fuse_pools()) on.pools = passes.fuse_pools();
  if (passes.has_fuse_images()) on.images = passes.fuse_images();
  if (passes.has_fuse_norms()) on.norms = passes.fuse_norms();
  if (passes.has_fuse_loss()) on.loss = passes.fuse_loss();
  if (passes.has_fuse_heads()) on.heads = passes.fuse_heads();
  if (passes.has_fuse_weights()) on.weights = passes.fuse_weights();
  return on;
}

}  // namespace

engine::PassOptions PassOptionsOf(const Passes& passes) {
  engine::PassOptions options;
  if (passes.has_fuse()) options.fuse = passes.fuse();
  options.patterns = PatternsOf(passes);
  if (passes.has_in_place()) options.in_place = passes.in_place();
  if (passes.has_reuse_memory()) options.reuse_memory = passes.reuse_memory();
  if (passes.has_keep_constants()) options.keep_constants = passes.keep_constants();
  if (passes.has_keep_dropout()) options.keep_dropout = passes.keep_dropout();
  if (passes.has_bf16_pairs()) options.bf16_pairs = passes.bf16_pairs();
  if (passes.has_epilogues()) options.epilogues = passes.epilogues();
  if (passes.has_step_graph()) options.step_graph = passes.step_graph();
  if (passes.has_whole_step_graph()) options.whole_step_graph = passes.whole_step_graph();
  if (passes.bucket_size() > 0) {
    options.bucket_elements = passes.bucket_size() / static_cast<int64_t>(sizeof(float));
  }
  return options;
}

int64_t EvalBlockOf(int64_t given, const std::vector<FieldSpec>& fields) {
  if (given > 0) return given;
  const bool tokens = !fields.empty() && fields[0].name == "tokens" && !fields[0].shape.empty();
  return tokens ? job::EvalBlockOfTokens(fields[0].shape[0]) : job::kDefaultEvalBlock;
}

absl::StatusOr<engine::TrainSpec> EngineSpec(const JobSpec& job, const data::Dataset& dataset,
                                             int64_t total_steps) {
  const Train& train = job.train();
  engine::TrainSpec spec;
  if (absl::StartsWith(job.resources().device(), "cuda")) spec.device = engine::DeviceKind::kCuda;
  LS_ASSIGN_OR_RETURN(spec.model, ModelSpecOf(train.model()));
  LS_ASSIGN_OR_RETURN(spec.optimizer, OptimizerSpecOf(train.optimizer()));
  spec.schedule = ScheduleSpecOf(train.schedule(), total_steps);
  spec.input.fields = dataset.fields();
  spec.input.classes = dataset.classes();
  spec.shards = train.shards();
  spec.accumulate = train.accumulate() > 0 ? train.accumulate() : 1;
  spec.micro_batch = train.global_batch() / spec.shards / spec.accumulate;
  spec.eval_block = EvalBlockOf(train.eval().block(), dataset.fields());
  spec.evaluates = train.eval().every() != "never";
  if (!train.precision().empty()) spec.precision = train.precision();
  spec.fp8 = train.fp8();
  if (train.has_loss_scale()) {
    const LossScale& scale = train.loss_scale();
    spec.loss_scale = {scale.init_scale(), scale.growth_factor(), scale.backoff_factor(),
                       scale.growth_interval()};
  }
  LS_ASSIGN_OR_RETURN(spec.recompute.mode, RecomputeModeOf(train.recompute()));
  spec.passes = PassOptionsOf(train.passes());
  // A CPU's are where the rest of its state is.
  spec.offload_moments =
      job.resources().offload_optimizer() && spec.device == engine::DeviceKind::kCuda;
  spec.label_smoothing = train.label_smoothing();
  spec.seed = train.seed();
  spec.spare_norms_and_biases = train.optimizer().no_decay() == "auto";
  spec.groups = GroupsOf(train.optimizer());
  spec.clip_norm = train.clip_norm();
  spec.ema_decay = train.ema().decay();
  spec.threads = job.resources().cpus_per_proc() > 0 ? job.resources().cpus_per_proc() : 1;
  return spec;
}

namespace {

constexpr int64_t kMostSteps = 1'000'000'000'000'000;  // as train.steps in job/schema.cc
constexpr int64_t kMostSamples = int64_t{1} << 62;     // places in the endless stream

absl::Status CheckEpochs(int64_t epochs, const data::DistributedSampler::Options& options) {
  const bool drops = options.tail == data::Tail::kDrop;
  const int64_t left_out = drops ? options.dataset_size % options.global_batch : 0;
  const absl::int128 samples = absl::int128(epochs) * (options.dataset_size - left_out);
  const absl::int128 steps = (samples + options.global_batch - 1) / options.global_batch;
  if (steps <= kMostSteps && (drops || samples <= kMostSamples)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("train.epochs: ", epochs, " epochs of ", options.dataset_size,
                   " samples are more than ", steps > kMostSteps ? kMostSteps : kMostSamples,
                   steps > kMostSteps ? " steps" : " samples", "; lower it"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<data::DistributedSampler>> MakeSampler(const Train& train,
                                                                      int64_t dataset_size) {
  data::DistributedSampler::Options options;
  options.dataset_size = dataset_size;
  options.global_batch = train.global_batch();
  options.shards = train.shards();
  options.seed = train.seed();
  options.tail = train.tail() == "drop" ? data::Tail::kDrop : data::Tail::kCarry;
  if (options.tail == data::Tail::kDrop && options.global_batch > dataset_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("an epoch has no step: global_batch ", options.global_batch,
                     " is larger than the ", dataset_size,
                     " samples and tail: drop leaves out what does not fill a batch; use tail: "
                     "carry or a smaller global_batch"));
  }
  LS_RETURN_IF_ERROR(CheckEpochs(train.epochs(), options));
  return std::make_unique<data::DistributedSampler>(options);
}

int64_t TotalSteps(const Train& train, const data::DistributedSampler& sampler) {
  return train.steps() > 0 ? train.steps() : sampler.StepsFor(train.epochs());
}

bool CompressesGradients(const JobSpec& job) {
  return job.train().gradient_compression() == "bf16";
}

bool ShardsMoments(const JobSpec& job) {
  return job.train().zero_stage() > 0 && MostWorkers(job) > 2;
}

}  // namespace lockstep::worker
