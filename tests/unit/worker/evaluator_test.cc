// SPDX-License-Identifier: Apache-2.0
#include "worker/step/evaluator.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/group_members.h"
#include "tests/unit/worker/small_job.h"
#include "worker/commands/saved_model.h"

namespace lockstep::worker {
namespace {

// The samples of another data set, of which the first `targets` count.
class FewTargets : public data::Dataset {
 public:
  FewTargets(std::unique_ptr<data::Dataset> all, int64_t targets)
      : all_(std::move(all)), targets_(targets) {}
  int64_t size() const override { return all_->size(); }
  const std::vector<FieldSpec>& fields() const override { return all_->fields(); }
  int64_t classes() const override { return all_->classes(); }
  absl::Status ReadBatch(const data::ReadRequest& request,
                         absl::Span<void* const> fields) const override {
    absl::Status read = all_->ReadBatch(request, fields);
    auto* const labels = static_cast<int32_t*>(fields.back());
    for (size_t i = 0; i < request.indices.size(); ++i) {
      if (request.indices[i] >= targets_) labels[i] = -1;
    }
    return read;
  }

 private:
  const std::unique_ptr<data::Dataset> all_;
  const int64_t targets_;
};

EvalResult EvaluateWith(int64_t targets) {
  Compiled job(SmallJob());
  const engine::Plan& plan = *job.compiled.plan;
  const AlignedMemory state = AllocateAligned(plan.state_bytes());
  const AlignedMemory arena = AllocateAligned(plan.arena_bytes());
  const auto executor =
      engine::Executor::Create(job.compiled.plan, {state.get(), arena.get()}).value();
  executor->InitState();
  const FewTargets samples(std::move(job.data.test), targets);
  ProgressBoard board;
  FakeNetwork network;
  std::vector<std::unique_ptr<FakeTransport>> ranks;
  ranks.push_back(std::make_unique<FakeTransport>(&network, size_t{1} << 16));
  const auto members = GroupMembers(ranks, [](const auto& rank) -> Transport& { return *rank; });
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  const auto communicator = ranks[0]->Connect({1, "small", "", members, 0}, deadline).value();
  const auto evaluator =
      Evaluator::Create(&samples, executor.get(), plan.spec().eval_block, &board, Clock::Real())
          .value();
  return evaluator->Run(communicator.get(), 7, 1.5, deadline).value();
}

TEST(Evaluator, TheMeanIsThatOfTheTargets) {
  const EvalResult result = EvaluateWith(100);
  EXPECT_EQ(result.samples(), 100);
  EXPECT_EQ(result.targets(), 100);
  EXPECT_EQ(result.classes(), 5);
  EXPECT_GT(result.loss(), 0);
  EXPECT_GE(result.top5_accuracy(), result.accuracy());
}

// A loss of 0 would be the best that there ever was.
TEST(Evaluator, WithoutATargetThereIsNoMean) {
  const EvalResult result = EvaluateWith(0);
  EXPECT_EQ(result.samples(), 0);
  EXPECT_TRUE(std::isnan(result.loss()));
  EXPECT_TRUE(std::isnan(result.accuracy()));
  EXPECT_TRUE(std::isnan(result.top5_accuracy()));
}

}  // namespace
}  // namespace lockstep::worker
