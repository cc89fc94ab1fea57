// SPDX-License-Identifier: Apache-2.0
#include "worker/step/evaluator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "common/check.h"
#include "common/status.h"

namespace lockstep::worker {
Evaluator::Evaluator(const data::Dataset* dataset, engine::Inference* executor, int64_t block,
                     ProgressBoard* board, Clock* clock, bool averages)
    : dataset_(dataset),
      executor_(executor),
      board_(board),
      clock_(clock),
      averages_(averages),
      block_(block),
      blocks_((dataset->size() + block - 1) / block),
      indices_(block) {
  for (const FieldSpec& field : dataset->fields()) {
    if (field.name == kLabelsField) targets_per_sample_ = field.elements();
    const size_t bytes = (static_cast<size_t>(block) * field.bytes() + 63) / 64 * 64;
    memory_.emplace_back(std::aligned_alloc(64, bytes), std::free);
    LS_CHECK(memory_.back() != nullptr) << "out of memory for evaluation";
    std::memset(memory_.back().get(), 0, bytes);
    fields_.push_back(memory_.back().get());
    read_only_.push_back(memory_.back().get());
  }
}

absl::Status Evaluator::RunBlock(int64_t block, const std::function<bool()>& cancelled,
                                 Rows* rows) {
  const int64_t begin = block * block_;
  const int64_t valid = std::min(block_, dataset_->size() - begin);
  std::iota(indices_.begin(), indices_.begin() + valid, begin);
  LS_RETURN_IF_ERROR(dataset_->ReadBatch({absl::MakeConstSpan(indices_.data(), valid)}, fields_));
  const auto run = [&](engine::Weights weights, Row* row) -> absl::Status {
    engine::EvalSums sums;
    LS_RETURN_IF_ERROR(
        executor_->Evaluate(read_only_, valid, &sums, weights, {.cancelled = cancelled}));
    *row = {sums.loss, sums.correct, sums.samples, sums.correct_top5};
    return absl::OkStatus();
  };
  LS_RETURN_IF_ERROR(run(engine::Weights::kCurrent, &rows->current));
  if (averages_) LS_RETURN_IF_ERROR(run(engine::Weights::kAverage, &rows->average));
  board_->Moved();
  return absl::OkStatus();
}

EvalResult Evaluator::Combine(const std::vector<Rows>& all, int world, Row Rows::*which) const {
  const int64_t rows = (blocks_ + world - 1) / world;
  Row sum{0, 0, 0, 0};
  for (int64_t block = 0; block < blocks_; ++block) {
    const Row& row = all[(block % world) * rows + block / world].*which;
    sum.loss += row.loss;
    sum.correct += row.correct;
    sum.samples += row.samples;
    sum.correct_top5 += row.correct_top5;
  }
  EvalResult result;
  result.set_samples(sum.samples);
  if (sum.samples == 0) return result;
  const auto samples = static_cast<double>(sum.samples);
  result.set_loss(sum.loss / samples);
  result.set_accuracy(static_cast<double>(sum.correct) / samples);
  result.set_top5_accuracy(static_cast<double>(sum.correct_top5) / samples);
  return result;
}

absl::StatusOr<EvalResult> Evaluator::Run(Communicator* communicator, int64_t step, double epoch,
                                          absl::Time deadline) {
  const absl::Time start = clock_->Now();
  const int world = communicator->world_size();
  // Block b is dealt to rank b mod world, as that rank's row b / world.
  const int64_t rows = (blocks_ + world - 1) / world;
  std::vector<Rows> mine(rows, Rows{}), all(rows * world);
  // A long block is seen to move on: each node counts. It is given up when the generation ends.
  const std::function<bool()> cancelled = [this, communicator] {
    board_->Moved();
    return communicator->aborted();
  };
  for (int64_t block = communicator->rank(); block < blocks_; block += world) {
    LS_RETURN_IF_ERROR(RunBlock(block, cancelled, &mine[block / world]));
  }
  LS_RETURN_IF_ERROR(communicator->AllGather(
      mine.data(), all.data(), rows * static_cast<int64_t>(sizeof(Rows)), DType::kUInt8, deadline));
  EvalResult result = Combine(all, world, &Rows::current);
  if (averages_) *result.mutable_ema() = Combine(all, world, &Rows::average);
  result.set_step(step);
  result.set_epoch(epoch);
  if (targets_per_sample_ > 1) result.set_perplexity(std::exp(result.loss()));
  result.set_seconds(absl::ToDoubleSeconds(clock_->Now() - start));
  return result;
}

}  // namespace lockstep::worker
