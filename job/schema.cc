// SPDX-License-Identifier: Apache-2.0
#include "job/schema.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "job/meaning/defaults.h"
#include "proto/job.pb.h"

namespace lockstep::job {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr double kAny = 1e300;

const std::vector<FieldRule>& Rules() {
  // Of what other programs need too: the texts of the values in job/meaning/defaults.h.
  const auto in_time = [](absl::Duration value) {
    return new std::string(FormatDuration(absl::ToInt64Nanoseconds(value)));
  };
  static const std::string& kFailureDetection = *in_time(kDefaultFailureDetection);
  static const std::string& kStartTimeout = *in_time(kDefaultStartTimeout);
  static const std::string& kMaxRestarts = *new std::string(absl::StrCat(kDefaultMaxRestarts));
  static const std::string& kDropoutRate = *new std::string(absl::StrCat(kDefaultDropoutRate));
  static const auto* const rules = new std::vector<FieldRule>{
      {.field = "JobSpec.name", .form = Form::kName},
      {.field = "JobSpec.queue", .form = Form::kName, .fallback = "default"},
      {.field = "JobSpec.env", .form = Form::kVariable},
      {.field = "JobSpec.secrets", .form = Form::kVariable},
      {.field = "JobSpec.workdir", .form = Form::kPath},
      {.field = "JobSpec.time_limit", .min = 0},
      {.field = "JobSpec.failure_detection",
       .min = 0.1,
       .max = 3600,
       .fallback = kFailureDetection},
      {.field = "JobSpec.start_timeout", .min = 1, .fallback = kStartTimeout},
      {.field = "JobSpec.verify_replicas", .form = Form::kEveryEval, .fallback = "never"},
      {.field = "JobSpec.nccl", .optional = true},
      {.field = "Nccl.use", .fallback = "auto", .choices = {"auto", "always", "never"}},
      {.field = "Nccl.order", .fallback = "fixed", .choices = {"fixed", "fastest"}},
      {.field = "Nccl.symmetric_memory", .optional = true},
      {.field = "Nccl.proto",
       .form = Form::kNcclNames,
       .choices = {"LL", "LL128", "Simple"},
       .optional = true},
      {.field = "Nccl.debug", .choices = {"version", "warn", "info", "trace"}, .optional = true},
      {.field = "Nccl.net_gdr_level",
       .choices = {"LOC", "PIX", "PXB", "PHB", "SYS"},
       .optional = true},
      {.field = "Nccl.p2p_level",
       .choices = {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"},
       .optional = true},
      {.field = "Nccl.ib_timeout", .min = 1, .max = 22, .optional = true},
      {.field = "Nccl.ib_retry_cnt", .min = 1, .max = 7, .optional = true},
      {.field = "Nccl.ib_gid_index", .min = -1, .max = 255, .optional = true},
      {.field = "Nccl.cross_nic", .min = 0, .max = 2, .optional = true},
      {.field = "Nccl.min_ctas", .min = 1, .max = 64, .optional = true},
      {.field = "Nccl.max_ctas", .min = 1, .max = 64, .optional = true},
      {.field = "Nccl.min_nchannels", .min = 1, .max = 64, .optional = true},
      {.field = "Nccl.max_nchannels", .min = 1, .max = 64, .optional = true},
      {.field = "Nccl.nthreads",
       .min = 64,
       .max = 512,
       .among = {64, 128, 256, 512},
       .optional = true},
      {.field = "Nccl.buffsize", .form = Form::kSize, .min = 1, .max = 1LL << 32, .optional = true},
      {.field = "Nccl.env", .form = Form::kVariable},
      {.field = "Resources.nodes", .min = 1, .max = 65536, .fallback = "1"},
      {.field = "Resources.nproc_per_node", .min = 1, .max = 4096, .fallback = "1"},
      {.field = "Resources.ranks_per_node", .min = 1, .max = 4096},
      {.field = "Resources.cpus_per_proc", .min = 1, .max = 1024, .fallback = "1"},
      {.field = "Resources.device", .form = Form::kDevice, .fallback = "auto"},
      {.field = "Resources.memory", .form = Form::kSize, .min = 0},
      {.field = "Resources.gpu_memory", .form = Form::kSize, .min = 0},
      {.field = "Resources.standby", .min = 0, .max = 4096},
      {.field = "Resources.matmul", .fallback = "auto", .choices = {"auto", "measured", "library"}},
      {.field = "Resources.cudnn", .fallback = "auto", .choices = {"auto", "always", "never"}},
      {.field = "Resources.nproc_by", .choices = {"gpu", "cpu", "auto"}, .optional = true},
      {.field = "Resources.bind_cpus", .fallback = "auto", .choices = {"auto", "never"}},
      {.field = "JobSpec.elastic", .optional = true},
      {.field = "Elastic.min_workers", .min = 1},
      {.field = "Elastic.max_workers", .min = 1, .max = 4096},
      {.field = "Train.model", .required = true},
      {.field = "Train.data", .required = true},
      {.field = "Train.optimizer", .required = true},
      {.field = "Train.global_batch", .min = 1, .max = 1e12, .required = true},
      {.field = "Train.shards", .min = 1, .max = 4096},
      {.field = "Train.accumulate", .min = 1, .max = 4096, .fallback = "1"},
      {.field = "Train.epochs", .min = 1, .max = 1e12},
      {.field = "Train.steps", .min = 1, .max = 1e15},
      {.field = "Train.precision", .fallback = "fp32"},
      {.field = "Train.tail", .fallback = "carry", .choices = {"carry", "drop"}},
      {.field = "Train.reproducible", .fallback = "true"},
      {.field = "Train.clip_norm", .min = 0, .max = kAny},
      {.field = "Train.label_smoothing", .min = 0, .max = 1, .max_excluded = true},
      {.field = "Train.on_nonfinite", .fallback = "skip", .choices = {"skip", "fail"}},
      {.field = "Train.max_skips", .min = 1, .fallback = "100"},
      {.field = "Train.ema", .optional = true},
      {.field = "Train.early_stop", .optional = true},
      {.field = "Train.best", .optional = true},
      {.field = "Train.loss_scale", .optional = true},
      {.field = "Train.recompute",
       .fallback = "none",
       .choices = {"none", "selective", "blocks", "auto"}},
      {.field = "Train.zero_stage", .min = 0, .max = 1},
      {.field = "Train.gradient_compression", .fallback = "none", .choices = {"none", "bf16"}},
      {.field = "Train.passes", .optional = true},
      {.field = "Passes.fuse", .fallback = "true"},
      {.field = "Passes.fuse_relu", .fallback = "true"},
      {.field = "Passes.fuse_activations", .fallback = "true"},
      {.field = "Passes.fuse_addends", .fallback = "true"},
      {.field = "Passes.fuse_residuals", .fallback = "true"},
      {.field = "Passes.fuse_pools", .fallback = "true"},
      {.field = "Passes.fuse_images", .fallback = "true"},
      {.field = "Passes.fuse_norms", .fallback = "true"},
      {.field = "Passes.fuse_loss", .fallback = "true"},
      {.field = "Passes.fuse_heads", .fallback = "true"},
      {.field = "Passes.fuse_weights", .fallback = "true"},
      {.field = "Passes.in_place", .fallback = "true"},
      {.field = "Passes.reuse_memory", .fallback = "true"},
      {.field = "Passes.bucket_size",
       .form = Form::kSize,
       .min = 64,
       .max = 1LL << 40,
       .fallback = "1MiB"},
      {.field = "LossScale.init_scale", .min = 0, .min_excluded = true, .fallback = "65536"},
      {.field = "LossScale.growth_factor", .min = 1, .fallback = "2"},
      {.field = "LossScale.backoff_factor",
       .min = 0,
       .max = 1,
       .min_excluded = true,
       .fallback = "0.5"},
      {.field = "LossScale.growth_interval", .min = 1, .fallback = "2000"},
      {.field = "Ema.decay",
       .min = 0,
       .max = 1,
       .min_excluded = true,
       .max_excluded = true,
       .required = true},
      {.field = "EarlyStop.metric",
       .fallback = "loss",
       .choices = {"loss", "accuracy", "ema_loss", "ema_accuracy"}},
      {.field = "EarlyStop.patience", .min = 1, .fallback = "5"},
      {.field = "EarlyStop.min_delta", .min = 0},
      {.field = "Best.metric",
       .fallback = "accuracy",
       .choices = {"accuracy", "loss", "ema_accuracy", "ema_loss"}},
      {.field = "Mlp.hidden", .min = 1, .max = 1 << 20},
      {.field = "Gpt.preset",
       .fallback = "gpt2",
       .choices = {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}},
      {.field = "Gpt.layers", .min = 1, .max = 1024},
      {.field = "Gpt.heads", .min = 1, .max = 1024},
      {.field = "Gpt.width", .min = 1, .max = 1 << 17},
      {.field = "Gpt.context", .min = 1, .max = 1 << 20},
      {.field = "Gpt.vocab", .min = 1, .max = 1 << 24},
      {.field = "Gpt.dropout", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.1"},
      {.field = "Gpt.tied_head", .fallback = "true"},
      {.field = "Bert.preset",
       .fallback = "bert-base",
       .choices = {"bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base",
                   "bert-large"}},
      {.field = "Bert.layers", .min = 1, .max = 1024},
      {.field = "Bert.heads", .min = 1, .max = 1024},
      {.field = "Bert.width", .min = 1, .max = 1 << 17},
      {.field = "Bert.inner", .min = 1, .max = 1 << 20},
      {.field = "Bert.context", .min = 1, .max = 1 << 20},
      {.field = "Bert.vocab", .min = 1, .max = 1 << 24},
      {.field = "Bert.dropout", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.1"},
      {.field = "Text.path", .form = Form::kPath, .required = true},
      {.field = "Text.length", .min = 1, .max = 1 << 20, .fallback = "256"},
      {.field = "Text.test_fraction", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.1"},
      {.field = "Text.masked", .min = 0, .max = 1, .max_excluded = true},
      {.field = "Tokens.train", .form = Form::kPath},
      {.field = "Tokens.test", .form = Form::kPath},
      {.field = "Tokens.length", .min = 1, .max = 1 << 20, .fallback = "1024"},
      {.field = "Tokens.vocab", .min = 1, .max = 1 << 24, .fallback = "50257"},
      {.field = "Tokens.train_samples", .min = 1, .max = 1e12, .fallback = "10000"},
      {.field = "Tokens.test_samples", .min = 1, .max = 1e12, .fallback = "1000"},
      {.field = "Cnn.channels", .min = 1, .max = 1 << 20},
      {.field = "Cnn.kernel", .min = 1, .max = 1023, .fallback = "3"},
      {.field = "Cnn.hidden", .min = 1, .max = 1 << 20},
      {.field = "Resnet.depth",
       .min = 18,
       .max = 101,
       .among = {18, 34, 50, 101},
       .fallback = "18"},
      {.field = "Resnet.stem", .fallback = "imagenet", .choices = {"imagenet", "cifar"}},
      {.field = "Resnet.width", .min = 1, .max = 4096, .fallback = "64"},
      {.field = "LinearLayer.features", .min = 1, .max = 1 << 20},
      {.field = "ConvLayer.channels", .min = 1, .max = 1 << 20, .required = true},
      {.field = "ConvLayer.kernel", .min = 1, .max = 65536},
      {.field = "ConvLayer.stride", .min = 1, .max = 65536},
      {.field = "ConvLayer.padding", .min = 0, .max = 65536},
      {.field = "ConvLayer.dilation", .min = 1, .max = 65536},
      {.field = "ConvLayer.groups", .min = 1, .max = 65536},
      {.field = "Mlp.dropout", .min = 0, .max = 1, .max_excluded = true},
      {.field = "Cnn.dropout", .min = 0, .max = 1, .max_excluded = true},
      {.field = "DropoutLayer.rate",
       .min = 0,
       .max = 1,
       .max_excluded = true,
       .fallback = kDropoutRate},
      {.field = "GeluLayer.approximate", .fallback = "none", .choices = {"none", "tanh"}},
      {.field = "LayerNormLayer.eps", .min = 0, .max = 1, .min_excluded = true},
      {.field = "BatchNormLayer.eps", .min = 0, .max = 1, .min_excluded = true},
      {.field = "BatchNormLayer.momentum", .min = 0, .max = 1, .min_excluded = true},
      {.field = "PoolLayer.kernel", .min = 1, .max = 1024, .required = true},
      {.field = "PoolLayer.stride", .min = 1, .max = 65536},
      {.field = "PoolLayer.padding", .min = 0, .max = 512},
      {.field = "SyntheticClassification.shape", .min = 1, .max = 1 << 24},
      {.field = "ImageFolder.path", .form = Form::kPath},
      {.field = "ImageFolder.mean", .fallback = "0.2860"},
      {.field = "ImageFolder.std", .min = 0, .min_excluded = true, .fallback = "0.3530"},
      {.field = "Idx.train_images", .form = Form::kPath, .required = true},
      {.field = "Idx.train_labels", .form = Form::kPath, .required = true},
      {.field = "Idx.test_images", .form = Form::kPath},
      {.field = "Idx.test_labels", .form = Form::kPath},
      {.field = "Idx.mean", .fallback = "0"},
      {.field = "Idx.std", .min = 0, .min_excluded = true, .fallback = "1"},
      {.field = "Cifar10.path", .form = Form::kPath, .required = true},
      {.field = "Cifar10.std", .min = 0, .min_excluded = true},
      {.field = "Npy.train_inputs", .form = Form::kPath, .required = true},
      {.field = "Npy.train_labels", .form = Form::kPath, .required = true},
      {.field = "Npy.test_inputs", .form = Form::kPath},
      {.field = "Npy.test_labels", .form = Form::kPath},
      {.field = "Npy.std", .min = 0, .min_excluded = true},
      {.field = "Npy.vocab", .min = 0, .max = 1 << 24},
      {.field = "Npy.padding", .min = 0, .max = 1 << 24},
      {.field = "Csv.train", .form = Form::kPath, .required = true},
      {.field = "Csv.test", .form = Form::kPath},
      {.field = "Csv.label", .fallback = "-1"},
      {.field = "Csv.header", .fallback = "auto", .choices = {"auto", "yes", "no"}},
      {.field = "Augment.crop_padding", .min = 0, .max = 64},
      {.field = "SyntheticClassification.train_samples",
       .min = 1,
       .max = 1e12,
       .fallback = "60000"},
      {.field = "SyntheticClassification.test_samples", .min = 1, .max = 1e12, .fallback = "10000"},
      {.field = "SyntheticClassification.features", .min = 1, .max = 1 << 24, .fallback = "784"},
      {.field = "SyntheticClassification.classes", .min = 2, .max = 1 << 24, .fallback = "10"},
      {.field = "Loader.threads", .min = 1, .max = 1024},
      {.field = "Loader.prefetch", .min = 1, .max = 65536, .fallback = "4"},
      {.field = "Sgd.lr", .min = 0, .max = kAny, .min_excluded = true, .required = true},
      {.field = "Sgd.momentum", .min = 0, .max = 1, .max_excluded = true},
      {.field = "Sgd.dampening", .min = 0, .max = 1},
      {.field = "Sgd.weight_decay", .min = 0},
      {.field = "Schedule.warmup_steps", .min = 0},
      {.field = "Adam.lr", .min = 0, .max = kAny, .min_excluded = true, .required = true},
      {.field = "Adam.beta1", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.9"},
      {.field = "Adam.beta2", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.999"},
      {.field = "Adam.eps", .min = 0, .max = kAny, .fallback = "1e-8"},
      {.field = "Adam.weight_decay", .min = 0, .max = kAny},
      {.field = "AdamW.lr", .min = 0, .max = kAny, .min_excluded = true, .required = true},
      {.field = "AdamW.beta1", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.9"},
      {.field = "AdamW.beta2", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.999"},
      {.field = "AdamW.eps", .min = 0, .max = kAny, .fallback = "1e-8"},
      {.field = "AdamW.weight_decay", .min = 0, .max = kAny, .fallback = "0.01"},
      {.field = "Lamb.lr", .min = 0, .max = kAny, .min_excluded = true, .required = true},
      {.field = "Lamb.beta1", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.9"},
      {.field = "Lamb.beta2", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.999"},
      {.field = "Lamb.eps", .min = 0, .max = kAny, .fallback = "1e-6"},
      {.field = "Lamb.weight_decay", .min = 0, .max = kAny, .fallback = "0.01"},
      {.field = "MuonRest.lr", .min = 0, .max = kAny, .min_excluded = true, .fallback = "1e-3"},
      {.field = "MuonRest.beta1", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.9"},
      {.field = "MuonRest.beta2", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.999"},
      {.field = "MuonRest.eps", .min = 0, .max = kAny, .fallback = "1e-8"},
      {.field = "MuonRest.weight_decay", .min = 0, .max = kAny, .fallback = "0.01"},
      {.field = "Muon.lr", .min = 0, .max = kAny, .min_excluded = true, .required = true},
      {.field = "Muon.momentum", .min = 0, .max = 1, .max_excluded = true, .fallback = "0.95"},
      {.field = "Muon.weight_decay", .min = 0, .max = kAny, .fallback = "0.1"},
      {.field = "Muon.nesterov", .fallback = "true"},
      {.field = "Muon.ns_steps", .min = 1, .max = 99, .fallback = "5"},
      {.field = "Muon.adjust_lr",
       .fallback = "original",
       .choices = {"original", "match_rms_adamw"}},
      {.field = "Optimizer.no_decay", .fallback = "none", .choices = {"none", "auto"}},
      {.field = "ParameterGroup.match", .required = true},
      {.field = "ParameterGroup.lr_scale", .min = 0, .max = kAny},
      {.field = "ParameterGroup.weight_decay", .min = 0, .max = kAny},
      {.field = "StepSchedule.every", .min = 1},
      {.field = "StepSchedule.milestones", .min = 1, .optional = true},
      {.field = "Muon.exclude", .optional = true},
      {.field = "StepSchedule.gamma", .min = 0, .max = 1, .min_excluded = true, .fallback = "0.1"},
      {.field = "LinearSchedule.min_factor", .min = 0, .max = 1},
      {.field = "PolynomialSchedule.power", .min = 0, .max = kAny, .fallback = "1"},
      {.field = "PolynomialSchedule.min_factor", .min = 0, .max = 1},
      {.field = "ExponentialSchedule.gamma",
       .min = 0,
       .max = 1,
       .min_excluded = true,
       .required = true},
      {.field = "OneCycleSchedule.pct_start",
       .min = 0,
       .max = 1,
       .min_excluded = true,
       .max_excluded = true,
       .fallback = "0.3"},
      {.field = "OneCycleSchedule.div_factor", .min = 1, .max = kAny, .fallback = "25"},
      {.field = "OneCycleSchedule.final_div_factor", .min = 1, .max = kAny, .fallback = "10000"},
      {.field = "OneCycleSchedule.shape", .fallback = "cosine", .choices = {"cosine", "linear"}},
      {.field = "WsdSchedule.decay_steps", .min = 1, .required = true},
      {.field = "WsdSchedule.min_factor", .min = 0, .max = 1},
      {.field = "WsdSchedule.shape", .fallback = "linear", .choices = {"linear", "cosine", "sqrt"}},
      {.field = "CosineSchedule.min_factor", .min = 0, .max = 1},
      {.field = "Evaluation.every", .form = Form::kEveryEval, .fallback = kDefaultEvalEvery},
      {.field = "Evaluation.block", .min = 1, .max = 1 << 24},
      {.field = "Run.command", .required = true},
      {.field = "JobSpec.checkpoint", .optional = true},
      {.field = "Checkpoint.every", .form = Form::kEvery},
      {.field = "Checkpoint.keep", .min = 1, .fallback = "3"},
      {.field = "Checkpoint.dir", .form = Form::kPath},
      {.field = "Checkpoint.resume", .form = Form::kPath, .fallback = "auto"},
      {.field = "Checkpoint.shared", .fallback = "auto", .choices = {"auto", "always", "never"}},
      {.field = "Restart.max_restarts", .min = 0, .fallback = kMaxRestarts},
      {.field = "Preemption.grace", .min = 0},
      {.field = "Profile.steps", .form = Form::kSteps},
      {.field = "Profile.sort",
       .fallback = "total",
       .choices = {"total", "self", "average", "calls", "flops", "bytes"}},
      {.field = "Debug.dump_tensors", .form = Form::kPath},
      {.field = "Debug.steps", .form = Form::kSteps},
      {.field = "Logs.tee", .fallback = "all", .choices = {"all", "0", "none"}},
  };
  return *rules;
}

const std::vector<Alternatives>& AlternativesTable() {
  static const auto* const table = new std::vector<Alternatives>{
      {"Train", {"epochs", "steps"}}, {"StepSchedule", {"every", "milestones"}}};
  return *table;
}

using Parents = std::map<std::string, std::vector<std::string>, std::less<>>;

void CollectParents(const Descriptor& message, const std::string& path, Parents* parents) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    (*parents)[field.name()].push_back(path);
    if (field.message_type() == nullptr || field.is_repeated() || IsDuration(field)) continue;
    CollectParents(*field.message_type(),
                   path.empty() ? field.name() : absl::StrCat(path, ".", field.name()), parents);
  }
}

}  // namespace

const FieldRule& RuleOf(const FieldDescriptor& field) {
  static const FieldRule none;
  static const auto* const by_name = [] {
    auto* map = new std::map<std::string, const FieldRule*, std::less<>>;
    for (const FieldRule& rule : Rules()) (*map)[std::string(rule.field)] = &rule;
    return map;
  }();
  const auto found =
      by_name->find(absl::StrCat(field.containing_type()->name(), ".", field.name()));
  return found == by_name->end() ? none : *found->second;
}

absl::Span<const FieldRule> AllRules() { return Rules(); }
absl::Span<const Alternatives> AllAlternatives() { return AlternativesTable(); }

std::vector<Group> GroupsOf(const Descriptor& message) {
  std::vector<Group> groups;
  for (int i = 0; i < message.real_oneof_decl_count(); ++i) {
    const google::protobuf::OneofDescriptor& oneof = *message.oneof_decl(i);
    Group group;
    for (int k = 0; k < oneof.field_count(); ++k) group.fields.push_back(oneof.field(k)->name());
    group.required = message.name() != "Schedule";  // constant when none is given
    groups.push_back(std::move(group));
  }
  for (const Alternatives& alternatives : AlternativesTable()) {
    if (alternatives.message == message.name()) groups.push_back({alternatives.fields, true});
  }
  return groups;
}

const std::vector<std::string>& SupportedPrecisions() {
  static const auto* const names =
      new std::vector<std::string>{"fp32", "tf32", "bf16", "fp16", "pure_bf16", "pure_fp16"};
  return *names;
}

bool IsDuration(const FieldDescriptor& field) {
  return field.message_type() != nullptr &&
         field.message_type()->full_name() == "google.protobuf.Duration";
}

std::vector<std::string> FieldNames(const Descriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  // The form of the command says this one.
  if (message.name() == "Run") std::erase(names, "shell");
  return names;
}

std::vector<std::string> ParentsOfField(absl::string_view name) {
  static const auto* const parents = [] {
    auto* map = new Parents;
    CollectParents(*JobSpec::descriptor(), "", map);
    return map;
  }();
  const auto found = parents->find(name);
  return found == parents->end() ? std::vector<std::string>{} : found->second;
}

}  // namespace lockstep::job
