// SPDX-License-Identifier: Apache-2.0
// What a worker brings to its GPU, on the emulated one: from page-locked memory, and before it is
// needed.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "common/status.h"
#include "engine/cuda/module.h"
#include "gtest/gtest.h"
#include "tests/emulation/emulation.h"
#include "tests/unit/worker/fake_session.h"
#include "tests/unit/worker/group_members.h"
#include "worker/step/trainer.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kSteps = 3;
constexpr int64_t kEvalBlock = 10;

JobSpec GpuJob() {
  JobSpec job;
  job.set_name("small");
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_nproc_per_node(1);
  job.mutable_resources()->set_cpus_per_proc(1);
  job.mutable_resources()->set_device("cuda");
  job.mutable_elastic()->set_min_workers(1);
  Train& train = *job.mutable_train();
  train.mutable_model()->mutable_mlp()->add_hidden(9);
  SyntheticClassification& data = *train.mutable_data()->mutable_synthetic();
  data.set_train_samples(50);
  data.set_test_samples(35);
  data.set_features(7);
  data.set_classes(3);
  train.set_global_batch(8);
  train.set_shards(2);
  train.set_accumulate(2);
  train.set_steps(kSteps);
  train.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  train.mutable_ema()->set_decay(0.5);
  train.mutable_eval()->set_block(kEvalBlock);
  return job;
}

// A data set that notes when its samples were read, and where to.
class WatchedDataset : public data::Dataset {
 public:
  struct Read {
    bool locked = true;  // all fields went to page-locked memory
    int64_t waits = 0;   // of the host for the GPU so far
  };
  explicit WatchedDataset(std::unique_ptr<data::Dataset> all) : all_(std::move(all)) {}
  int64_t size() const override { return all_->size(); }
  const std::vector<FieldSpec>& fields() const override { return all_->fields(); }
  int64_t classes() const override { return all_->classes(); }
  absl::Status ReadBatch(const data::ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    Read read{true, emulation::Waits()};
    for (size_t f = 0; f < fields.size(); ++f) {
      const size_t bytes = request.indices.size() * all_->fields()[f].bytes();
      const auto begin = reinterpret_cast<uintptr_t>(fields[f]);
      read.locked = read.locked && emulation::LockedBytes(begin, bytes) == bytes;
    }
    {
      const absl::MutexLock lock(&mutex_);
      reads_.push_back(read);
    }
    return all_->ReadBatch(request, fields);
  }
  std::vector<Read> reads() const {
    const absl::MutexLock lock(&mutex_);
    return reads_;
  }

 private:
  const std::unique_ptr<data::Dataset> all_;
  mutable absl::Mutex mutex_;  // the loader's thread reads, and its consumer
  mutable std::vector<Read> reads_ ABSL_GUARDED_BY(mutex_);
};

// A job of one worker.
struct OneWorker {
  explicit OneWorker(const JobSpec& spec) {
    data = OpenJobData(spec).value();
    auto watched_train = std::make_unique<WatchedDataset>(std::move(data.train));
    auto watched_test = std::make_unique<WatchedDataset>(std::move(data.test));
    train = watched_train.get();
    test = watched_test.get();
    data.train = std::move(watched_train);
    data.test = std::move(watched_test);
    compiled = CompileJob(spec, data).value();
    transport = std::make_unique<FakeTransport>(&network, compiled.arena_bytes + (size_t{1} << 16));
    link = std::make_unique<ControlLink>(WorkerBootstrap{}, FakeSession::On(&wire));
    link->Start();
    auto created = Trainer::Create(compiled, {.data = &data,
                                              .transport = transport.get(),
                                              .board = &board,
                                              .link = link.get(),
                                              .clock = Clock::Real()});
    EXPECT_TRUE(created.ok()) << created.status();
    trainer = *std::move(created);
  }
  absl::Status Train() {
    const std::array<FakeTransport*, 1> all = {transport.get()};
    std::vector<GroupMember> members =
        GroupMembers(all, [](FakeTransport* one) -> Transport& { return *one; });
    members[0].shards = {0, compiled.job.train().shards()};
    const absl::Time deadline = absl::Now() + absl::Minutes(5);
    LS_ASSIGN_OR_RETURN(const auto communicator,
                        transport->Connect({1, "small", "", members, 0}, deadline));
    std::vector<int> holders;
    LS_RETURN_IF_ERROR(trainer->JoinState(communicator.get(), Generation(), "", &holders));
    return trainer->RunGeneration(communicator.get(), members[0].shards, nullptr).status();
  }

  WatchedDataset* train = nullptr;
  WatchedDataset* test = nullptr;
  JobData data;
  CompiledJob compiled;
  FakeNetwork network;
  FakeSession::Wire wire;
  std::unique_ptr<FakeTransport> transport;
  std::unique_ptr<ControlLink> link;
  ProgressBoard board;
  std::unique_ptr<Trainer> trainer;
};

class CudaStagingTest : public testing::TestWithParam<emulation::Streams> {
 protected:
  void SetUp() override {
    engine::cuda::UseTables(engine::cuda::EmulatedTables());
    emulation::SetStreams(GetParam());
  }
  void TearDown() override { emulation::SetStreams(emulation::Streams::kEager); }
};

TEST_P(CudaStagingTest, BatchesAndBlocksLieInPageLockedMemory) {
  {
    OneWorker run(GpuJob());
    ASSERT_TRUE(run.Train().ok());
    EXPECT_EQ(run.trainer->committed_step(), kSteps);
    EXPECT_EQ(run.train->reads().size(), 2u * kSteps);
    EXPECT_EQ(run.test->reads().size(), 4u);
    for (const WatchedDataset* data : {run.train, run.test}) {
      for (const WatchedDataset::Read& read : data->reads()) EXPECT_TRUE(read.locked);
    }
    EXPECT_GT(emulation::RegisteredBytes(), 0u);
  }
  EXPECT_EQ(emulation::RegisteredBytes(), 0u);
}

// A stream that is late has work to be waited for. Each block is run with the weights and with
// their averages; the next is read when the second run is launched and nobody has waited for it.
TEST_P(CudaStagingTest, TheNextBlockIsReadWhileTheGpuComputes) {
  if (GetParam() == emulation::Streams::kEager) GTEST_SKIP() << "nobody waits for such streams";
  OneWorker run(GpuJob());
  ASSERT_TRUE(run.Train().ok());
  ASSERT_EQ(run.test->reads().size(), 4u);
  for (size_t block = 1; block < 4; ++block) {
    // For the sums of the weights, and before them for those of the averages of the block before.
    const int64_t waits = run.test->reads()[block].waits - run.test->reads()[block - 1].waits;
    EXPECT_EQ(waits, block == 1 ? 1 : 2) << block;
  }
}

TEST_P(CudaStagingTest, AnEvaluationIsThatOfBlocksReadOneByOne) {
  OneWorker run(GpuJob());
  ASSERT_TRUE(run.Train().ok());
  // The state that it ended with, on an executor that reads no block ahead.
  ASSERT_TRUE(run.trainer->PublishState().ok());
  const engine::Plan& plan = *run.compiled.plan;
  std::vector<std::byte> memory(plan.state_bytes() + 64);
  auto* const state = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  auto executor = engine::Executor::Create(run.compiled.plan, {state, nullptr}).value();
  std::memcpy(executor->BeginLoad(), run.trainer->state(), plan.state_bytes());
  executor->EndLoad();
  const std::vector<FieldSpec>& specs = run.test->fields();
  double current = 0, average = 0;
  for (int64_t first = 0; first < run.test->size(); first += kEvalBlock) {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<void*> fields;
    for (const FieldSpec& field : specs) {
      bytes.emplace_back(static_cast<size_t>(kEvalBlock) * field.bytes());
      fields.push_back(bytes.back().data());
    }
    std::vector<int64_t> indices;
    for (int64_t i = first; i < std::min(first + kEvalBlock, run.test->size()); ++i) {
      indices.push_back(i);
    }
    ASSERT_TRUE(run.test->ReadBatch({indices}, fields).ok());
    const std::vector<const void*> read_only(fields.begin(), fields.end());
    engine::EvalSums sums;
    const auto valid = static_cast<int64_t>(indices.size());
    ASSERT_TRUE(executor->Evaluate(read_only, valid, &sums).ok());
    current += sums.loss;
    ASSERT_TRUE(executor->Evaluate(read_only, valid, &sums, engine::Weights::kAverage).ok());
    average += sums.loss;
  }
  ASSERT_TRUE(run.trainer->eval().has_value());
  EXPECT_EQ(run.trainer->eval()->loss(), current / 35);
  EXPECT_EQ(run.trainer->eval()->ema().loss(), average / 35);
  EXPECT_NE(current, average);
}

INSTANTIATE_TEST_SUITE_P(, CudaStagingTest,
                         testing::Values(emulation::Streams::kEager, emulation::Streams::kLazy),
                         [](const auto& info) {
                           return info.param == emulation::Streams::kLazy ? "Lazy" : "Eager";
                         });

}  // namespace
}  // namespace lockstep::worker
