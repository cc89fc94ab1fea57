// SPDX-License-Identifier: Apache-2.0
// Evaluation of the model on the test split, dealt over the workers in numbered blocks. The losses
// are added in block order in fp64 and the counts are integers, so the result does not depend on
// how many workers there are.
//
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STEP_EVALUATOR_H_
#define LOCKSTEP_WORKER_STEP_EVALUATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "common/clock.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "proto/coordinator.pb.h"
#include "worker/control/progress_board.h"

namespace lockstep::worker {

class Evaluator {
 public:
  // `dataset`, `executor`, `board` and `clock` outlive this. Allocates the buffers. With `averages`
  // the averaged weights are evaluated too.
  Evaluator(const data::Dataset* dataset, engine::Inference* executor, int64_t block,
            ProgressBoard* board, Clock* clock, bool averages = false);

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
  absl::Status RunBlock(int64_t block, const std::function<bool()>& cancelled, Rows* rows);
  // The sums of `blocks` rows, in order, as a result.
  EvalResult Combine(const std::vector<Rows>& all, int world, Row Rows::*which) const;

  const data::Dataset* const dataset_;
  engine::Inference* const executor_;
  ProgressBoard* const board_;
  Clock* const clock_;
  const bool averages_;
  const int64_t block_;
  const int64_t blocks_;
  int64_t targets_per_sample_ = 1;
  std::vector<int64_t> indices_;
  std::vector<std::unique_ptr<void, void (*)(void*)>> memory_;  // one for each field
  std::vector<void*> fields_;
  std::vector<const void*> read_only_;  // the same
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STEP_EVALUATOR_H_
