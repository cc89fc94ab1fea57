// SPDX-License-Identifier: Apache-2.0
#include "worker/step/evaluator.h"

#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "common/round_up.h"
#include "common/status.h"
#include "engine/math/math.h"

namespace lockstep::worker {

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::Create(const data::Dataset* dataset,
                                                             engine::Executor* executor,
                                                             int64_t block, ProgressBoard* board,
                                                             Clock* clock, bool averages) {
  LS_ASSIGN_OR_RETURN(std::unique_ptr<BlockReader> reader,
                      BlockReader::Create(dataset, executor, block, board));
  const int64_t targets = data::TargetsPerSample(*dataset);
  return absl::WrapUnique(new Evaluator(std::move(reader), executor, board, clock, averages,
                                        targets, dataset->classes()));
}

Evaluator::Evaluator(std::unique_ptr<BlockReader> reader, engine::Executor* executor,
                     ProgressBoard* board, Clock* clock, bool averages, int64_t targets_per_sample,
                     int64_t classes)
    : reader_(std::move(reader)),
      executor_(executor),
      board_(board),
      clock_(clock),
      averages_(averages),
      targets_per_sample_(targets_per_sample),
      classes_(classes) {}

EvalResult Evaluator::Combine(const std::vector<Rows>& all, int world, Row Rows::*which) const {
  const int64_t blocks = reader_->blocks(), rows = DivideUp(blocks, world);
  Row sum{0, 0, 0, 0};
  for (int64_t block = 0; block < blocks; ++block) {
    const Row& row = all[(block % world) * rows + block / world].*which;
    sum.loss += row.loss;
    sum.correct += row.correct;
    sum.samples += row.samples;
    sum.correct_top5 += row.correct_top5;
  }
  EvalResult result;
  result.set_samples(sum.samples);
  result.set_targets(sum.samples);
  result.set_classes(classes_);
  const auto samples = static_cast<double>(sum.samples);
  const auto mean = [samples](double value) {
    return samples > 0 ? value / samples : std::numeric_limits<double>::quiet_NaN();
  };
  result.set_loss(mean(sum.loss));
  result.set_accuracy(mean(static_cast<double>(sum.correct)));
  result.set_top5_accuracy(mean(static_cast<double>(sum.correct_top5)));
  return result;
}

absl::StatusOr<EvalResult> Evaluator::Run(Communicator* communicator, int64_t step, double epoch,
                                          absl::Time deadline) {
  const absl::Time start = clock_->Now();
  const int world = communicator->world_size();
  // Block b is dealt to rank b mod world, as that rank's row b / world.
  const int64_t rows = DivideUp(reader_->blocks(), world);
  std::vector<Rows> mine(rows, Rows{}), all(rows * world);
  // A long block is seen to move on: each node counts. It is given up when the generation ends.
  const auto cancelled = [this, communicator] {
    board_->Moved();
    return communicator->aborted();
  };
  bool average = false;  // each block is run with the weights, and with their averages
  LS_RETURN_IF_ERROR(reader_->ForEach(
      {communicator->rank(), world, averages_ ? 2 : 1, cancelled},
      [&](const BlockReader::Block& block,
          const engine::Inference::BlockHooks& hooks) -> absl::Status {
        engine::EvalSums sums;
        LS_RETURN_IF_ERROR(executor_->Evaluate(
            block.fields, block.valid, &sums,
            average ? engine::Weights::kAverage : engine::Weights::kCurrent, hooks));
        Rows& rows_of = mine[block.number / world];
        (average ? rows_of.average : rows_of.current) = {sums.loss, sums.correct, sums.samples,
                                                         sums.correct_top5};
        if (averages_) average = !average;
        board_->Moved();
        return absl::OkStatus();
      }));
  LS_RETURN_IF_ERROR(communicator->AllGather(
      mine.data(), all.data(), rows * static_cast<int64_t>(sizeof(Rows)), DType::kUInt8, deadline));
  EvalResult result = Combine(all, world, &Rows::current);
  if (averages_) *result.mutable_ema() = Combine(all, world, &Rows::average);
  result.set_step(step);
  result.set_epoch(epoch);
  if (targets_per_sample_ > 1) result.set_perplexity(engine::Exp(result.loss()));
  result.set_seconds(absl::ToDoubleSeconds(clock_->Now() - start));
  return result;
}

}  // namespace lockstep::worker
