// SPDX-License-Identifier: Apache-2.0
// Updates on the CPU as executors on GPUs do where nobody has all reduced gradients:
// it takes what it needs of them, sums its blocks, and wants the sums of all before it begins.
// Thread-safety: as the executor.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_CHECKED_SPREAD_UPDATE_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_CHECKED_SPREAD_UPDATE_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "gtest/gtest.h"

namespace lockstep::worker {

class CheckedSpreadUpdate : public engine::ShardedUpdate, public engine::SpreadUpdate {
 public:
  // `whole` is the whole reduced vector of a step.
  CheckedSpreadUpdate(engine::ShardedUpdate* inner, std::shared_ptr<const engine::Plan> plan,
                      std::function<engine::GradientSlice(int64_t step)> whole)
      : inner_(inner),
        blocks_(plan->SumBlocks()),
        tail_{plan->TailBegin(), plan->gradient_count()},
        whole_(std::move(whole)) {}

  absl::Status HoldMoments(std::vector<engine::HeldRange> held) override {
    held_.clear();
    for (const engine::HeldRange& range : held) held_.push_back({range.begin, range.end});
    return inner_->HoldMoments(std::move(held));
  }
  absl::Status HoldSums(std::vector<int> blocks) override {
    own_ = std::move(blocks);
    return absl::OkStatus();
  }
  absl::Status SumSquares(int64_t step, absl::Span<const engine::GradientSlice> reduced,
                          absl::Span<double> sums) override {
    std::vector<engine::GradientRange> needed = held_;
    needed.push_back(tail_);
    for (const int block : own_) needed.push_back(blocks_[static_cast<size_t>(block)]);
    for (const engine::GradientRange& range : needed) EXPECT_TRUE(Covers(reduced, range));
    for (const int block : own_) {
      sums[static_cast<size_t>(block)] = Squares(step, static_cast<size_t>(block));
    }
    summed_step_ = step;
    return absl::OkStatus();
  }
  absl::StatusOr<engine::StepResult> BeginUpdateWith(int64_t step,
                                                     absl::Span<const double> sums) override {
    EXPECT_EQ(summed_step_, step);
    EXPECT_EQ(sums.size(), blocks_.size());
    for (size_t block = 0; block < sums.size(); ++block) {
      EXPECT_EQ(sums[block], Squares(step, block)) << "block " << block << " of step " << step;
    }
    const engine::GradientSlice whole = whole_(step);
    return inner_->BeginUpdate(step, absl::MakeConstSpan(&whole, 1));
  }

  absl::StatusOr<engine::StepResult> BeginUpdate(
      int64_t step, absl::Span<const engine::GradientSlice> reduced) override {
    ADD_FAILURE() << "nobody has all gradients of step " << step;
    return inner_->BeginUpdate(step, reduced);
  }
  absl::Status FinishUpdate(int64_t step,
                            absl::Span<const engine::GradientSlice> weights) override {
    return inner_->FinishUpdate(step, weights);
  }
  int64_t begun_step() const override { return inner_->begun_step(); }

 private:
  double Squares(int64_t step, size_t block) const {
    const float* const data = whole_(step).data;
    double sum = 0;
    for (int64_t i = blocks_[block].begin; i < blocks_[block].end; ++i) {
      sum += static_cast<double>(data[i]) * static_cast<double>(data[i]);
    }
    return sum;
  }
  static bool Covers(absl::Span<const engine::GradientSlice> slices, engine::GradientRange range) {
    for (const engine::GradientSlice& slice : slices) {
      if (slice.begin <= range.begin) range.begin = std::max(range.begin, slice.end);
    }
    return range.begin >= range.end;
  }

  engine::ShardedUpdate* const inner_;
  const std::vector<engine::GradientRange> blocks_;
  const engine::GradientRange tail_;
  const std::function<engine::GradientSlice(int64_t step)> whole_;
  std::vector<engine::GradientRange> held_;
  std::vector<int> own_;
  int64_t summed_step_ = -1;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_CHECKED_SPREAD_UPDATE_H_
