// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/compiled_job.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "data/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/small_job.h"
#include "worker/checkpoint/checkpoint_identity.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Status Fit(const std::vector<int64_t>& takes, const std::vector<int64_t>& has) {
  const auto fields = [](const std::vector<int64_t>& shape) {
    return std::vector<FieldSpec>{{"inputs", FieldSpec::Type::kFloat32, shape, 0},
                                  {kLabelsField, FieldSpec::Type::kInt32, {}, 10}};
  };
  return CheckSamplesFit(fields(takes), fields(has), "the model takes", "the data has");
}

TEST(CheckSamplesFit, TakesTheSameValuesInTheSameOrder) {
  EXPECT_TRUE(Fit({3, 32, 32}, {3, 32, 32}).ok());
  EXPECT_TRUE(Fit({784}, {1, 28, 28}).ok());
  EXPECT_TRUE(Fit({1, 28, 28}, {784}).ok());
  EXPECT_TRUE(Fit({28, 28}, {784}).ok());
  EXPECT_TRUE(Fit({28, 28}, {28, 28, 1}).ok());
  EXPECT_TRUE(Fit({1}, {}).ok());
  EXPECT_TRUE(Fit({3072}, {3, 32, 32}).ok());
  EXPECT_TRUE(Fit({3, 32, 32}, {3, 1024}).ok());
  EXPECT_TRUE(Fit({4, 7, 28}, {28, 1, 28}).ok());
}

TEST(CheckSamplesFit, RefusesAnotherLayoutOfAsManyValues) {
  EXPECT_FALSE(Fit({784}, {783}).ok());
  EXPECT_FALSE(Fit({28, 28}, {14, 56}).ok());
  EXPECT_FALSE(Fit({3, 32, 32}, {32, 96}).ok());
  const absl::Status last = Fit({3, 32, 32}, {32, 32, 3});
  EXPECT_EQ(last.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(last.message()),
              HasSubstr("the model takes samples of inputs[3,32,32], labels[], but the data has "
                        "inputs[32,32,3], labels[]"));
}

TEST(CompileJob, WithoutEvaluationsTheArenaHasNoRoomForThem) {
  JobSpec job = SmallJob();
  job.mutable_train()->mutable_eval()->set_block(10000);
  const Compiled evaluates(job);
  job.mutable_train()->mutable_eval()->set_every("never");
  const Compiled never(job);
  EXPECT_LT(never.compiled.plan->arena_bytes(), evaluates.compiled.plan->arena_bytes() / 3);
  EXPECT_LT(never.compiled.need.total(), evaluates.compiled.need.total());
  EXPECT_EQ(never.compiled.plan->hash(), evaluates.compiled.plan->hash());
  job.mutable_resources()->set_memory(static_cast<int64_t>(never.compiled.need.total()));
  EXPECT_TRUE(CompileJob(job, never.data).ok());
}

// Of a batch normalisation the statistics are those of a micro-batch.
TEST(CompileJob, SmallerMicroBatchesAreSaidToBeTheSameMathWhereTheyAre) {
  JobSpec job = SmallJob();
  job.mutable_train()->mutable_eval()->set_every("never");
  job.mutable_train()->set_global_batch(4096);
  job.mutable_train()->mutable_data()->mutable_synthetic()->set_train_samples(4096);
  const auto refused = [&job] {
    job.mutable_resources()->set_memory(1000);
    const JobData data = OpenJobData(job).value();
    const absl::Status status = CompileJob(job, data).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    return std::string(status.message());
  };
  const std::string plain = refused();
  EXPECT_THAT(plain, HasSubstr("raise train.accumulate from 1 to 2 or more (smaller micro-batches, "
                               "the same math up to rounding)"));
  job.mutable_train()->mutable_model()->clear_kind();
  Layers& layers = *job.mutable_train()->mutable_model()->mutable_layers();
  layers.add_sequence()->mutable_linear()->set_features(64);
  layers.add_sequence()->mutable_batch_norm();
  layers.add_sequence()->mutable_linear();
  const std::string normalised = refused();
  EXPECT_THAT(normalised, HasSubstr("raise train.accumulate from 1 to 2 or more"));
  EXPECT_THAT(normalised, testing::Not(HasSubstr("the same math")));
  EXPECT_THAT(normalised, HasSubstr("batch normalisation's statistics are of a micro-batch"));
}

// With activations that are most of what it needs.
JobSpec DeepJob() {
  JobSpec job = SmallJob();
  job.mutable_train()->mutable_eval()->set_block(1);
  job.mutable_train()->mutable_model()->clear_kind();
  Gpt& gpt = *job.mutable_train()->mutable_model()->mutable_gpt();
  gpt.set_layers(6);
  gpt.set_heads(2);
  gpt.set_width(32);
  Tokens& tokens = *job.mutable_train()->mutable_data()->mutable_tokens();
  tokens.set_length(64);
  tokens.set_vocab(50);
  tokens.set_train_samples(100);
  return job;
}

std::string DifferenceBetween(const Compiled& saved, const Compiled& now) {
  const auto identity = [](const Compiled& of) {
    return IdentityOf(of.compiled.job, "run", *of.compiled.plan, "d", "device");
  };
  return DifferenceOf(identity(saved), identity(now));
}

// The level depends on the memory and on how many workers there may be; the bits do not.
TEST(CompileJob, WhatIsComputedAgainToSaveMemoryIsNoOtherTraining) {
  JobSpec job = DeepJob();
  job.mutable_train()->set_recompute("auto");
  job.mutable_resources()->set_memory(int64_t{1} << 30);
  const Compiled roomy(job);
  ASSERT_EQ(roomy.compiled.plan->recompute_level(), 0);
  job.mutable_resources()->set_memory(static_cast<int64_t>(roomy.compiled.need.total()) - 1);
  const Compiled tight(job);
  ASSERT_GT(tight.compiled.plan->recompute_level(), 0);
  ASSERT_NE(tight.compiled.plan->hash(), roomy.compiled.plan->hash());
  EXPECT_EQ(DifferenceBetween(roomy, tight), "");
}

// Where values are kept they are in the GPU's memory, whatever the host has.
TEST(CompileJob, OnAGpuItsMemoryDecidesWhatIsComputedAgain) {
  std::string hash;
  for (const bool host_needs_more : {false, true}) {
    JobSpec job = DeepJob();
    job.mutable_resources()->set_device("cuda");
    job.mutable_train()->set_recompute("auto");
    job.mutable_resources()->set_memory(int64_t{1} << 30);
    job.mutable_resources()->set_gpu_memory(int64_t{1} << 30);
    if (host_needs_more) job.mutable_train()->mutable_data()->mutable_loader()->set_prefetch(4096);
    const Compiled roomy(job);
    const MemoryNeed& need = roomy.compiled.need;
    ASSERT_EQ(need.total() > roomy.compiled.plan->arena_bytes(), host_needs_more);
    EXPECT_EQ(roomy.compiled.plan->recompute_level(), 0);
    job.mutable_resources()->set_memory(static_cast<int64_t>(need.total()));
    job.mutable_resources()->set_gpu_memory(static_cast<int64_t>(need.gpu.total()));
    EXPECT_EQ(Compiled(job).compiled.plan->recompute_level(), 0);
    job.mutable_resources()->set_gpu_memory(static_cast<int64_t>(need.gpu.total()) - 1);
    const Compiled tight(job);
    EXPECT_GT(tight.compiled.plan->recompute_level(), 0);
    EXPECT_LT(tight.compiled.need.gpu.total(), need.gpu.total());
    EXPECT_EQ(DifferenceBetween(roomy, tight), "");
    job.mutable_resources()->set_memory(int64_t{1} << 40);
    EXPECT_EQ(Compiled(job).compiled.plan->recompute_level(),
              tight.compiled.plan->recompute_level());
    job.mutable_resources()->set_memory(0);
    EXPECT_EQ(Compiled(job).compiled.plan->hash(), tight.compiled.plan->hash());
    if (host_needs_more) EXPECT_EQ(hash, tight.compiled.plan->hash());
    hash = tight.compiled.plan->hash();
  }
}

// What a worker's device is may be known on its host alone.
TEST(CompileJob, WhatIsComputedAgainNeedsTheMemoryOfItsDevice) {
  JobSpec job = DeepJob();
  job.mutable_train()->set_recompute("auto");
  const JobData data = OpenJobData(job).value();
  const auto refused = [&](const char* device, int64_t memory, int64_t gpu_memory) {
    job.mutable_resources()->set_device(device);
    job.mutable_resources()->set_memory(memory);
    job.mutable_resources()->set_gpu_memory(gpu_memory);
    const absl::Status status = CompileJob(job, data).status();
    if (!status.ok()) EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  constexpr int64_t kEnough = int64_t{1} << 30;
  EXPECT_EQ(refused("cpu", kEnough, 0), "");
  EXPECT_EQ(refused("cuda", 0, kEnough), "");
  EXPECT_THAT(refused("cpu", 0, kEnough), HasSubstr("needs 'resources.memory'"));
  EXPECT_THAT(refused("cuda", kEnough, 0), HasSubstr("needs 'resources.gpu_memory'"));
}

// Copies of weights spare little time: they are no reason to refuse a job.
TEST(CompileJob, WhatTheUpdateCopiesIsLeftOutWhereTheGpuHasNoRoomForIt) {
  JobSpec job = DeepJob();
  job.mutable_resources()->set_device("cuda");
  job.mutable_train()->set_precision("bf16");
  Passes& passes = *job.mutable_train()->mutable_passes();
  const auto allow = [&job](size_t bytes) {
    job.mutable_resources()->set_gpu_memory(static_cast<int64_t>(bytes));
  };
  const Compiled kept(job);
  const size_t with = kept.compiled.need.gpu.total();
  passes.set_keep_constants(false);
  const Compiled never(job);
  const size_t without = never.compiled.need.gpu.total();
  ASSERT_LT(without, with);

  passes.clear_keep_constants();
  allow(with);
  const Compiled fits(job);
  EXPECT_EQ(fits.compiled.plan->hash(), kept.compiled.plan->hash());
  for (const size_t room : {with - 1, without}) {
    allow(room);
    const Compiled tight(job);
    EXPECT_EQ(tight.compiled.need.gpu.total(), without);
    EXPECT_EQ(tight.compiled.plan->hash(), never.compiled.plan->hash());
    EXPECT_EQ(DifferenceBetween(kept, tight), "");
  }
}

// So are dropout's bits, after these.
TEST(CompileJob, WhatDropoutLeavesIsLeftOutWhereTheGpuHasNoRoomForIt) {
  JobSpec job = DeepJob();
  job.mutable_resources()->set_device("cuda");
  job.mutable_train()->set_precision("bf16");
  job.mutable_train()->mutable_model()->mutable_gpt()->set_width(128);  // heads of 64 columns
  job.mutable_train()->mutable_model()->mutable_gpt()->set_dropout(0.1);
  job.mutable_train()->mutable_data()->mutable_tokens()->set_length(130);
  Passes& passes = *job.mutable_train()->mutable_passes();
  const Compiled all(job);
  passes.set_keep_constants(false);
  const size_t bits_alone = Compiled(job).compiled.need.gpu.total();
  passes.set_keep_dropout(false);
  const Compiled none(job);
  const size_t least = none.compiled.need.gpu.total();
  ASSERT_LT(least, bits_alone);
  passes.Clear();
  for (const size_t room : {bits_alone, least}) {
    job.mutable_resources()->set_gpu_memory(static_cast<int64_t>(room));
    const Compiled tight(job);
    EXPECT_EQ(tight.compiled.need.gpu.total(), room);
    EXPECT_EQ(DifferenceBetween(all, tight), "");
  }
  job.mutable_resources()->set_gpu_memory(static_cast<int64_t>(least - 1));
  const JobData data = OpenJobData(job).value();
  EXPECT_THAT(std::string(CompileJob(job, data).status().message()),
              testing::Not(HasSubstr("keep_dropout")));
  passes.set_keep_dropout(true);
  EXPECT_THAT(std::string(CompileJob(job, data).status().message()),
              HasSubstr("leave out train.passes.keep_dropout"));
}

// Applies a piece of advice to `job`; false: it is none of the job's keys.
bool Follow(absl::string_view advice, JobSpec* job) {
  Train& train = *job->mutable_train();
  if (absl::StrContains(advice, "train.eval.block")) {
    train.mutable_eval()->set_block(train.global_batch() / train.shards());
  } else if (absl::StrContains(advice, "train.accumulate")) {
    train.set_accumulate(2);
  } else if (absl::StrContains(advice, "train.global_batch")) {
    train.set_global_batch(train.global_batch() / 2);
  } else if (absl::StrContains(advice, "train.recompute")) {
    train.set_recompute("blocks");
  } else if (absl::StrContains(advice, "train.precision")) {
    train.set_precision("bf16");
  } else if (absl::StrContains(advice, "offload_optimizer")) {
    job->mutable_resources()->set_offload_optimizer(true);
  } else {
    EXPECT_THAT(std::string(advice), HasSubstr("raise resources."));
    return false;
  }
  return true;
}

// The default block of an evaluation may take many times what training does.
TEST(CompileJob, AdviceBeginsWithTheEvaluationWhereItTakesMoreThanTraining) {
  for (const bool gpu : {false, true}) {
    JobSpec job = DeepJob();
    job.mutable_train()->mutable_eval()->set_block(1000);
    if (gpu) job.mutable_resources()->set_device("cuda");
    const auto total = [gpu](const JobSpec& of) {
      const MemoryNeed need = Compiled(of).compiled.need;
      return gpu ? need.gpu.total() : need.total();
    };
    const size_t all = total(job);
    JobSpec never = job;
    never.mutable_train()->mutable_eval()->set_every("never");
    const size_t training = total(never);
    ASSERT_LT(training, all / 3 * 2);
    const JobData data = OpenJobData(job).value();
    for (const bool training_fits : {true, false}) {
      SCOPED_TRACE(absl::StrCat(gpu, training_fits));
      JobSpec refused = job;
      const auto limit = static_cast<int64_t>(training_fits ? training : training - 1);
      if (gpu) {
        refused.mutable_resources()->set_gpu_memory(limit);
      } else {
        refused.mutable_resources()->set_memory(limit);
      }
      const absl::Status status = CompileJob(refused, data).status();
      ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      std::vector<std::string> advice =
          absl::StrSplit(absl::string_view(status.message()), "what would help: ");
      ASSERT_EQ(advice.size(), 2u) << status;
      advice = absl::StrSplit(std::string(advice[1]), "; ");
      EXPECT_THAT(advice[0], HasSubstr("lower train.eval.block from 1000"));
      EXPECT_EQ(advice.size() > 3, !training_fits) << status;
      // Each that follows is for what training takes by itself.
      for (size_t i = 0; i < advice.size(); ++i) {
        JobSpec followed = i == 0 ? job : never;
        if (!Follow(advice[i], &followed)) continue;
        EXPECT_LT(total(followed), i == 0 ? all : training) << advice[i];
      }
    }
  }
}

// What the job evaluates at once has no more samples than it trains at once.
TEST(CompileJob, AdviceIsForTrainingWhereItsMemoryIsWhatIsNeeded) {
  JobSpec job = DeepJob();
  job.mutable_resources()->set_memory(100000);
  const JobData data = OpenJobData(job).value();
  const absl::Status status = CompileJob(job, data).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("raise train.accumulate from 1 to 2"));
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("train.eval.block")));
}

TEST(CompileJob, AdviceForTheGpuIsWhatTheJobDoesNotDoYet) {
  JobSpec job = DeepJob();
  job.mutable_resources()->set_device("cuda");
  job.mutable_resources()->set_gpu_memory(1000);
  Passes& passes = *job.mutable_train()->mutable_passes();
  const JobData data = OpenJobData(job).value();
  const auto refused = [&](const std::string& precision) {
    job.mutable_train()->set_precision(precision);
    const absl::Status status = CompileJob(job, data).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    return std::string(status.message());
  };
  constexpr const char* kKeep = "set train.passes.keep_constants: false";
  EXPECT_THAT(refused("bf16"), testing::Not(HasSubstr(kKeep)));  // it was tried
  passes.set_keep_constants(true);
  EXPECT_THAT(refused("bf16"), HasSubstr(kKeep));
  EXPECT_THAT(refused("fp32"), testing::Not(HasSubstr(kKeep)));
  job.mutable_train()->set_accumulate(2);
  EXPECT_THAT(refused("fp32"), testing::Not(HasSubstr(kKeep)));
  job.mutable_train()->set_recompute("selective");
  EXPECT_THAT(refused("bf16"), testing::Not(HasSubstr(kKeep)));
  job.mutable_train()->set_recompute("none");
  passes.set_keep_constants(false);
  EXPECT_THAT(refused("bf16"), testing::Not(HasSubstr(kKeep)));

  constexpr const char* kHalves = "set train.precision to bf16";
  constexpr const char* kRecompute = "set train.recompute to auto";
  constexpr const char* kOffload = "set resources.offload_optimizer";
  EXPECT_THAT(refused("fp32"), AllOf(HasSubstr(kHalves), HasSubstr(kRecompute)));
  EXPECT_THAT(refused("fp32"), testing::Not(HasSubstr(kOffload)));  // moments are the least of it
  EXPECT_THAT(refused("bf16"), testing::Not(HasSubstr(kHalves)));
  EXPECT_THAT(refused("fp16"), testing::Not(HasSubstr(kHalves)));
  for (const char* const mode : {"blocks", "auto"}) {
    job.mutable_train()->set_recompute(mode);
    EXPECT_THAT(refused("fp32"), testing::Not(HasSubstr("train.recompute"))) << mode;
  }
  EXPECT_THAT(refused("fp32"), HasSubstr("lower train.global_batch"));
  job.mutable_train()->set_accumulate(12);  // micro-batches of one sample
  EXPECT_THAT(refused("fp32"), testing::Not(HasSubstr("train.global_batch")));
}

TEST(CompileJob, MomentsThatAreMuchOfTheGpusMemoryMayBeWithTheHost) {
  JobSpec job = SmallJob();
  job.mutable_train()->mutable_model()->mutable_mlp()->add_hidden(4096);
  job.mutable_train()->mutable_model()->mutable_mlp()->add_hidden(4096);
  job.mutable_resources()->set_device("cuda");
  const size_t here = Compiled(job).compiled.need.gpu.total();
  const JobData data = OpenJobData(job).value();
  const auto refused = [&job, &data] {
    JobSpec tight = job;
    tight.mutable_resources()->set_gpu_memory(1000);
    return std::string(CompileJob(tight, data).status().message());
  };
  constexpr const char* kOffload = "set resources.offload_optimizer";
  EXPECT_THAT(refused(), HasSubstr(kOffload));
  job.mutable_resources()->set_offload_optimizer(true);
  EXPECT_THAT(refused(), testing::Not(HasSubstr(kOffload)));
  EXPECT_LT(Compiled(job).compiled.need.gpu.total(), here);
  job.mutable_resources()->set_offload_optimizer(false);
  job.mutable_train()->mutable_optimizer()->mutable_sgd()->set_momentum(0);
  EXPECT_THAT(refused(), testing::Not(HasSubstr(kOffload)));  // there are none
}

// A folder with arrays and tables.
class WarningsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    job_.mutable_train()->mutable_eval()->set_every("never");
    job_.mutable_train()->set_global_batch(4);
    job_.mutable_train()->mutable_data()->clear_kind();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
    return folder_ + "/" + name;
  }
  std::string WriteNpy(const std::string& name, data::NpyType type,
                       const std::vector<int64_t>& shape) {
    size_t bytes = data::SizeOf(type);
    for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
    return Write(name, data::FormatNpyHeader(type, shape) + std::string(bytes, '\0'));
  }
  std::vector<std::string> Warnings() { return WarningsOf(Compiled(job_).compiled); }
  // Those of a job with a model of convolutions, or without them, of pictures of this shape.
  std::vector<std::string> WarningsOfPictures(const std::vector<int64_t>& shape,
                                              bool convolutions = true) {
    Train& train = *job_.mutable_train();
    train.mutable_model()->clear_kind();
    if (convolutions) {
      train.mutable_model()->mutable_layers()->add_sequence()->mutable_conv()->set_channels(2);
      train.mutable_model()->mutable_layers()->mutable_sequence(0)->mutable_conv()->set_kernel(1);
      train.mutable_model()->mutable_layers()->add_sequence()->mutable_linear();
    } else {
      train.mutable_model()->mutable_mlp()->add_hidden(4);
    }
    Npy& npy = *train.mutable_data()->mutable_npy();
    std::vector<int64_t> all = {8};
    all.insert(all.end(), shape.begin(), shape.end());
    npy.set_train_inputs(WriteNpy("x.npy", data::NpyType::kUInt8, all));
    npy.set_train_labels(WriteNpy("y.npy", data::NpyType::kUInt8, {8}));
    return Warnings();
  }
  std::string folder_ = testing::TempDir() + "warnings-XXXXXX";
  JobSpec job_ = SmallJob();
};

TEST_F(WarningsTest, ABatchOfMoreSamplesThanThereAre) {
  Train& train = *job_.mutable_train();
  SyntheticClassification& made = *train.mutable_data()->mutable_synthetic();
  made.set_train_samples(8);
  made.set_classes(10);
  train.set_global_batch(8);
  EXPECT_THAT(Warnings(), IsEmpty());
  train.set_global_batch(12);
  EXPECT_THAT(Warnings(),
              ElementsAre("'train.global_batch': a step takes 12 samples, and there are "
                          "8: it takes some of them more than once"));
}

TEST_F(WarningsTest, ALabelOfMoreClassesThanSamples) {
  Csv& csv = *job_.mutable_train()->mutable_data()->mutable_csv();
  csv.set_label("id");
  csv.set_train(Write("train.csv", "x,id\n1,0\n2,1\n3,2\n4,3\n"));
  EXPECT_THAT(Warnings(), IsEmpty());
  csv.set_train(Write("train.csv", "x,id\n1,0\n2,1\n3,2\n4,70000\n"));
  EXPECT_THAT(Warnings(), ElementsAre("'train.data.csv': the labels name 70001 classes for 4 "
                                      "samples: is column 'id' the label?"));
  csv.set_label("");
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("is column '-1' the label?")));
  Npy& npy = *job_.mutable_train()->mutable_data()->mutable_npy();
  npy.set_train_inputs(WriteNpy("x.npy", data::NpyType::kFloat32, {4, 3}));
  npy.set_train_labels(
      Write("y.npy", data::FormatNpyHeader(data::NpyType::kUInt8, {4}) + "\1\2\3\5"));
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("'train.data.npy': the labels name 6 classes for 4 "
                                                "samples: are those of '")));
  // What the job says is meant.
  SyntheticClassification& made = *job_.mutable_train()->mutable_data()->mutable_synthetic();
  made.set_train_samples(4);
  made.set_classes(10);
  EXPECT_THAT(Warnings(), IsEmpty());
}

TEST_F(WarningsTest, TokensThatAreTheirOwnTargets) {
  Train& train = *job_.mutable_train();
  Npy& npy = *train.mutable_data()->mutable_npy();
  npy.set_vocab(9);
  const auto write = [&](const std::string& name, const std::vector<int64_t>& values) {
    return Write(name, data::FormatNpyHeader(data::NpyType::kInt64, {4, 4}) +
                           std::string(reinterpret_cast<const char*>(values.data()), 16 * 8));
  };
  const std::vector<int64_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 5, 7, 2, 4, 6, 8};
  npy.set_train_inputs(write("x.npy", tokens));
  const auto labelled = [&](const std::vector<int64_t>& labels) {
    npy.set_train_labels(write("y.npy", labels));
    return Warnings();
  };
  std::vector<int64_t> padded = tokens, masked(16, -100);
  padded[15] = padded[3] = masked[1] = masked[10] = -100;
  masked[6] = 8;  // the input there is another token
  train.mutable_model()->clear_kind();
  Gpt& gpt = *train.mutable_model()->mutable_gpt();
  gpt.set_layers(1);
  gpt.set_heads(1);
  gpt.set_width(8);
  const auto shifts = ElementsAre(
      "'train.data.npy': each target of the first samples is the token at its own place, which a "
      "gpt sees: labels[t] is the token to guess at t, inputs[t + 1]; shift labels that are made "
      "for Hugging Face's models by one");
  EXPECT_THAT(labelled(tokens), shifts);
  EXPECT_THAT(labelled(padded), shifts);
  EXPECT_THAT(labelled({2, 3, 4, -100, 6, 7, 8, -100, 3, 5, 7, -100, 4, 6, 8, -100}), IsEmpty());
  EXPECT_THAT(labelled(std::vector<int64_t>(16, -100)), IsEmpty()) << "no target";
  Bert& bert = *train.mutable_model()->mutable_bert();
  bert.set_layers(1);
  bert.set_heads(1);
  bert.set_width(8);
  EXPECT_THAT(labelled(padded), ElementsAre(HasSubstr("which a bert sees: hide the tokens that it "
                                                      "is to guess, and label the others with")));
  EXPECT_THAT(labelled(masked), IsEmpty());
  npy.set_train_labels(WriteNpy("y.npy", data::NpyType::kInt64, {4}));
  EXPECT_THAT(Warnings(), IsEmpty()) << "a class for each sample";
}

TEST_F(WarningsTest, MeansOfBytesWhereTheyAreTakenAsParts) {
  Npy& npy = *job_.mutable_train()->mutable_data()->mutable_npy();
  npy.add_mean(72.9);
  EXPECT_THAT(WarningsOfPictures({1, 4, 4}),
              ElementsAre("'train.data.npy.mean': 72.9 is above 1, and uint8 inputs are taken as "
                          "[0, 1]: divide means and deviations of bytes by 255"));
  npy.set_mean(0, 0.286);
  npy.add_std(90);
  EXPECT_THAT(WarningsOfPictures({1, 4, 4}), ElementsAre(HasSubstr("npy.std': 90 is above 1")));
  npy.set_std(0, 0.353);
  EXPECT_THAT(WarningsOfPictures({1, 4, 4}), IsEmpty());
}

TEST_F(WarningsTest, PicturesWhoseChannelsComeLast) {
  EXPECT_THAT(WarningsOfPictures({32, 32, 3}),
              ElementsAre(HasSubstr("samples of [32, 32, 3] look like [height, width, channels], "
                                    "but are taken as [channels, height, width]: transpose(0, 3, "
                                    "1, 2) of the array")));
  EXPECT_THAT(WarningsOfPictures({28, 28, 1}), SizeIs(1));
  EXPECT_THAT(WarningsOfPictures({3, 32, 32}), IsEmpty());
  EXPECT_THAT(WarningsOfPictures({1, 28, 28}), IsEmpty());
  EXPECT_THAT(WarningsOfPictures({3, 3, 3}), IsEmpty());
  EXPECT_THAT(WarningsOfPictures({512, 1, 1}), IsEmpty()) << "features of no extent";
  EXPECT_THAT(WarningsOfPictures({28, 28, 1}, /*convolutions=*/false), IsEmpty());
}

}  // namespace
}  // namespace lockstep::worker
