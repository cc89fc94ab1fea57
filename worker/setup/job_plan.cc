// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/job_plan.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

engine::CnnSpec CnnSpecOf(const Cnn& cnn) {
  engine::CnnSpec spec;
  if (!cnn.channels().empty()) spec.channels = {cnn.channels().begin(), cnn.channels().end()};
  spec.hidden = {cnn.hidden().begin(), cnn.hidden().end()};
  if (cnn.kernel() > 0) spec.kernel = cnn.kernel();
  spec.batch_norm = cnn.batch_norm();
  spec.dropout = cnn.dropout();
  return spec;
}

engine::ResnetSpec ResnetSpecOf(const Resnet& resnet) {
  engine::ResnetSpec spec;
  if (resnet.depth() > 0) spec.depth = resnet.depth();
  spec.cifar_stem = resnet.stem() == "cifar";
  spec.zero_init = resnet.zero_init();
  if (resnet.width() > 0) spec.width = resnet.width();
  return spec;
}

std::vector<engine::LayerSpec> LayerSpecsOf(
    const google::protobuf::RepeatedPtrField<Layer>& layers);

engine::LayerSpec LayerSpecOf(const Layer& layer) {
  using Kind = engine::LayerSpec::Kind;
  engine::LayerSpec spec;
  const auto pool = [&](Kind kind, const PoolLayer& from) {
    spec.kind = kind;
    spec.kernel = from.kernel();
    spec.stride = from.stride();
    spec.padding = from.padding();
  };
  switch (layer.kind_case()) {
    case Layer::kLinear:
      spec.kind = Kind::kLinear;
      spec.width = layer.linear().features();
      spec.bias = !layer.linear().no_bias();
      break;
    case Layer::kConv: {
      const ConvLayer& conv = layer.conv();
      spec.kind = Kind::kConv;
      spec.width = conv.channels();
      spec.kernel = std::max<int64_t>(conv.kernel(), 1);
      spec.stride = conv.stride();
      spec.padding = conv.padding();
      spec.dilation = std::max<int64_t>(conv.dilation(), 1);
      spec.groups = std::max<int64_t>(conv.groups(), 1);
      spec.bias = !conv.no_bias();
      break;
    }
    case Layer::kBatchNorm:
      spec.kind = Kind::kBatchNorm;
      if (layer.batch_norm().eps() > 0) spec.eps = layer.batch_norm().eps();
      if (layer.batch_norm().momentum() > 0) spec.momentum = layer.batch_norm().momentum();
      break;
    case Layer::kMaxPool:
      pool(Kind::kMaxPool, layer.max_pool());
      break;
    case Layer::kAvgPool:
      pool(Kind::kAvgPool, layer.avg_pool());
      break;
    case Layer::kGlobalAvgPool:
      spec.kind = Kind::kGlobalAveragePool;
      break;
    case Layer::kFlatten:
      spec.kind = Kind::kFlatten;
      break;
    case Layer::kResidual:
      spec.kind = Kind::kResidual;
      spec.body = LayerSpecsOf(layer.residual().body());
      spec.shortcut = LayerSpecsOf(layer.residual().shortcut());
      break;
    case Layer::kDropout:
      spec.kind = Kind::kDropout;
      spec.rate = job::DropoutRate(layer.dropout());
      break;
    case Layer::kGelu:
      spec.kind = Kind::kGelu;
      spec.tanh = layer.gelu().approximate() == "tanh";
      break;
    case Layer::kSilu:
      spec.kind = Kind::kSilu;
      break;
    case Layer::kTanh:
      spec.kind = Kind::kTanh;
      break;
    case Layer::kSigmoid:
      spec.kind = Kind::kSigmoid;
      break;
    case Layer::kLayerNorm:
      spec.kind = Kind::kLayerNorm;
      if (layer.layer_norm().eps() > 0) spec.eps = layer.layer_norm().eps();
      break;
    case Layer::kRelu:
    case Layer::KIND_NOT_SET:
      spec.kind = Kind::kRelu;
      break;
  }
  return spec;
}

std::vector<engine::LayerSpec> LayerSpecsOf(
    const google::protobuf::RepeatedPtrField<Layer>& layers) {
  std::vector<engine::LayerSpec> specs;
  for (const Layer& layer : layers) specs.push_back(LayerSpecOf(layer));
  return specs;
}

}  // namespace

absl::StatusOr<engine::ModelSpec> ModelSpecOf(const Model& model) {
  switch (model.kind_case()) {
    case Model::kMlp:
      return engine::MlpSpec{{model.mlp().hidden().begin(), model.mlp().hidden().end()},
                             model.mlp().dropout()};
    case Model::kGpt: {
      const Gpt& gpt = model.gpt();
      engine::GptSpec spec{gpt.preset(), gpt.layers(),  gpt.heads(),
                           gpt.width(),  gpt.context(), gpt.vocab()};
      if (spec.preset.empty()) spec.preset = engine::GptSpec().preset;
      if (gpt.has_dropout()) spec.dropout = gpt.dropout();
      if (gpt.has_tied_head()) spec.tied_head = gpt.tied_head();
      return spec;
    }
    case Model::kBert: {
      const Bert& bert = model.bert();
      engine::BertSpec spec{bert.preset(), bert.layers(),  bert.heads(), bert.width(),
                            bert.inner(),  bert.context(), bert.vocab()};
      if (spec.preset.empty()) spec.preset = engine::BertSpec().preset;
      if (bert.has_dropout()) spec.dropout = bert.dropout();
      return spec;
    }
    case Model::kCnn:
      return CnnSpecOf(model.cnn());
    case Model::kResnet:
      return ResnetSpecOf(model.resnet());
    case Model::kLayers:
      return engine::LayersSpec{LayerSpecsOf(model.layers().sequence())};
    case Model::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("train.model names no model");
}

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
  return on;
}

engine::PassOptions PassOptionsOf(const Passes& passes) {
  engine::PassOptions options;
  if (passes.has_fuse()) options.fuse = passes.fuse();
  options.patterns = PatternsOf(passes);
  if (passes.has_in_place()) options.in_place = passes.in_place();
  if (passes.has_reuse_memory()) options.reuse_memory = passes.reuse_memory();
  if (passes.has_bf16_pairs()) options.bf16_pairs = passes.bf16_pairs();
  if (passes.has_epilogues()) options.epilogues = passes.epilogues();
  if (passes.has_step_graph()) options.step_graph = passes.step_graph();
  if (passes.has_whole_step_graph()) options.whole_step_graph = passes.whole_step_graph();
  if (passes.bucket_size() > 0) {
    options.bucket_elements = passes.bucket_size() / static_cast<int64_t>(sizeof(float));
  }
  return options;
}

}  // namespace

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
  if (train.eval().block() > 0) spec.eval_block = train.eval().block();
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
