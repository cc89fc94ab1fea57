// SPDX-License-Identifier: Apache-2.0
// Evaluation of the model on the test split, dealt over the workers in numbered blocks. The losses
// are added in block order in fp64 and the counts are integers, so the result does not depend on
// how many workers there are.
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STEP_EVALUATOR_H_
#define LOCKSTEP_WORKER_STEP_EVALUATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "common/clock.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "proto/coordinator.pb.h"
#include "worker/control/progress_board.h"
#include "worker/setup/block_reader.h"

namespace lockstep::worker {

class Evaluator {
 public:
  // `dataset`, `executor`, `board` and `clock` outlive this. Allocates the buffers of blocks of
  // `block` samples. With `averages` the averaged weights are evaluated too. Errors:
  // ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Evaluator>> Create(const data::Dataset* dataset,
                                                           engine::Executor* executor,
                                                           int64_t block, ProgressBoard* board,
                                                           Clock* clock, bool averages = false);

  // Evaluates the present state with the other ranks; all get the same result. Blocks.
  // Errors: those of the communicator, DataLoss.
  absl::StatusOr<EvalResult> Run(Communicator* communicator, int64_t step, double epoch,
                                 absl::Time deadline);

 private:
  struct Row {  // of one block, as it travels
    double loss;
    int64_t correct;
    int64_t samples;
    int64_t correct_top5;
  };
  // Of the weights, and of their averages where there are any.
  struct Rows {
    Row current;
    Row average;
  };
  Evaluator(std::unique_ptr<BlockReader> reader, engine::Executor* executor, ProgressBoard* board,
            Clock* clock, bool averages, int64_t targets_per_sample, int64_t classes);
  // The sums of `blocks` rows, in order, as a result; NaN where no sample has a target.
  EvalResult Combine(const std::vector<Rows>& all, int world, Row Rows::*which) const;

  const std::unique_ptr<BlockReader> reader_;
  engine::Executor* const executor_;
  ProgressBoard* const board_;
  Clock* const clock_;
  const bool averages_;
  const int64_t targets_per_sample_;
  const int64_t classes_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STEP_EVALUATOR_H_
