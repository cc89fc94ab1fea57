// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/job_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

// Samples that are nothing but fields.
class EmptySamples : public data::Dataset {
 public:
  explicit EmptySamples(std::vector<FieldSpec> fields) : fields_(std::move(fields)) {}
  int64_t size() const override { return 1; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  int64_t classes() const override { return 10; }
  absl::Status ReadBatch(const data::ReadRequest&, absl::Span<void* const>) const override {
    return absl::UnimplementedError("nobody reads it");
  }

 private:
  const std::vector<FieldSpec> fields_;
};

TEST(TotalSteps, CountsStepsOfTheStreamOrTakesThemAsGiven) {
  Train train;
  train.set_global_batch(256);
  train.set_shards(4);
  train.set_epochs(5);
  EXPECT_EQ(TotalSteps(train, **MakeSampler(train, 60000)), (5 * 60000 + 255) / 256);
  train.set_tail("drop");
  EXPECT_EQ(TotalSteps(train, **MakeSampler(train, 60000)), 5 * (60000 / 256));
  train.set_epochs(0);
  train.set_steps(7);
  EXPECT_EQ(TotalSteps(train, **MakeSampler(train, 60000)), 7);
}

TEST(MakeSampler, RefusesAnEpochWithoutAStep) {
  Train train;
  train.set_global_batch(256);
  train.set_shards(4);
  train.set_epochs(5);
  EXPECT_TRUE(MakeSampler(train, 100).ok());
  train.set_tail("drop");
  const auto sampler = MakeSampler(train, 100);
  EXPECT_EQ(sampler.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sampler.status().message()), HasSubstr("tail: carry"));
}

TEST(MakeSampler, RefusesMoreStepsThanCanBeCounted) {
  Train train;
  train.set_global_batch(1);
  train.set_shards(1);
  train.set_epochs(1'000'000'000'000);
  for (const char* tail : {"carry", "drop"}) {
    train.set_tail(tail);
    EXPECT_EQ(TotalSteps(train, **MakeSampler(train, 1000)), 1'000'000'000'000'000);
    for (const int64_t samples : {int64_t{1001}, int64_t{1} << 24, int64_t{1} << 40}) {
      const auto sampler = MakeSampler(train, samples);
      EXPECT_EQ(sampler.status().code(), absl::StatusCode::kInvalidArgument) << samples;
      EXPECT_THAT(std::string(sampler.status().message()), HasSubstr("train.epochs"));
    }
  }
  train.set_epochs(0);
  train.set_steps(7);
  EXPECT_TRUE(MakeSampler(train, int64_t{1} << 40).ok());
}

TEST(EngineSpec, TakesThePassesThatTheJobSwitchesOff) {
  JobSpec job;
  Train& train = *job.mutable_train();
  train.mutable_model()->mutable_mlp()->add_hidden(8);
  train.mutable_data()->mutable_synthetic()->set_features(4);
  train.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  train.set_global_batch(8);
  train.set_shards(2);
  const auto source = DataSource(train);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto dataset = data::Open(*source, data::Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  auto spec = EngineSpec(job, **dataset, 1);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->passes.fuse && spec->passes.in_place && spec->passes.reuse_memory);
  EXPECT_EQ(spec->passes.bucket_elements, 262144);
  train.mutable_passes()->set_fuse(false);
  train.mutable_passes()->set_in_place(false);
  train.mutable_passes()->set_reuse_memory(false);
  train.mutable_passes()->set_bucket_size(4096);
  train.mutable_passes()->set_fuse_pools(false);
  spec = EngineSpec(job, **dataset, 1);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->passes.fuse || spec->passes.in_place || spec->passes.reuse_memory);
  EXPECT_EQ(spec->passes.bucket_elements, 1024);
  EXPECT_FALSE(spec->passes.patterns.pools);
  EXPECT_TRUE(spec->passes.patterns.relu && spec->passes.patterns.loss);
}

TEST(EngineSpec, EvaluatesAsManySamplesAtOnceAsHave4096Tokens) {
  JobSpec job;
  Train& train = *job.mutable_train();
  train.mutable_model()->mutable_bert();
  train.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  train.set_global_batch(8);
  train.set_shards(2);
  const auto block = [&](const std::string& field, std::vector<int64_t> shape) {
    const auto type = FieldSpec::Type::kInt32;
    const EmptySamples samples({{field, type, shape, 10}, {kLabelsField, type, {}, 10}});
    return EngineSpec(job, samples, 1)->eval_block;
  };
  EXPECT_EQ(block("tokens", {128}), 32);
  EXPECT_EQ(block("tokens", {5000}), 1);
  EXPECT_EQ(block("inputs", {128}), 1000);
  train.mutable_eval()->set_block(1000);
  EXPECT_EQ(block("tokens", {128}), 1000);
}

TEST(DataSource, KeepsTheDataSetsUsualNormalisationUnlessTold) {
  Train train;
  train.mutable_data()->mutable_fashion_mnist();
  auto source = DataSource(train);
  ASSERT_TRUE(source.ok());
  EXPECT_DOUBLE_EQ(std::get<data::FashionMnistSource>(*source).mean, 0.2860);
  train.mutable_data()->mutable_fashion_mnist()->set_mean(0);
  source = DataSource(train);
  EXPECT_DOUBLE_EQ(std::get<data::FashionMnistSource>(*source).mean, 0);
  EXPECT_FALSE(DataSource(Train()).ok());
}

}  // namespace
}  // namespace lockstep::worker
