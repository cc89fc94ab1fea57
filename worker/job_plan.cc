// SPDX-License-Identifier: Apache-2.0
#include "worker/job_plan.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace lockstep::worker {
absl::StatusOr<engine::ModelSpec> ModelSpecOf(const Model& model) {
  switch (model.kind_case()) {
    case Model::kMlp:
      return engine::MlpSpec{{model.mlp().hidden().begin(), model.mlp().hidden().end()}};
    case Model::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("train.model names no model");
}

namespace {

absl::StatusOr<engine::OptimizerSpec> OptimizerSpecOf(const Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case Optimizer::kSgd: {
      const Sgd& sgd = optimizer.sgd();
      return engine::SgdSpec{sgd.lr(), sgd.momentum(), sgd.dampening(), sgd.weight_decay(),
                             sgd.nesterov()};
    }
    case Optimizer::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("train.optimizer names no optimizer");
}

engine::ScheduleSpec ScheduleSpecOf(const Schedule& schedule, int64_t total_updates) {
  engine::ScheduleSpec spec;
  spec.total_updates = total_updates;
  spec.warmup_updates = schedule.warmup_steps();
  if (schedule.has_cosine()) {
    spec.kind = engine::ScheduleSpec::Kind::kCosine;
    spec.min_factor = schedule.cosine().min_factor();
  }
  return spec;
}

}  // namespace

absl::StatusOr<Every> ParseEvery(const std::string& text) {
  if (text.empty() || text == "never") return Every{};
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  int64_t count = 0;
  if (words.size() == 2 && absl::SimpleAtoi(words[0], &count) && count > 0) {
    if (words[1] == "step" || words[1] == "steps") return Every{count, 0};
    if (words[1] == "epoch" || words[1] == "epochs") return Every{0, count};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not an interval: write '500 steps', '1 epoch' or 'never'"));
}

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
      if (made.classes() > 0) source.classes = made.classes();
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
                             {npy.std().begin(), npy.std().end()}};
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

absl::StatusOr<engine::TrainSpec> EngineSpec(const JobSpec& job, const data::Dataset& dataset,
                                             int64_t total_steps) {
  const Train& train = job.train();
  engine::TrainSpec spec;
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
  spec.seed = train.seed();
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

}  // namespace lockstep::worker
