// SPDX-License-Identifier: Apache-2.0
// Looks at every value as soon as it is made: the first NaN or infinite one ends the job with the
// node's name, and values can be written as .npy files. Gradients of a scaled loss may overflow
// while its scale is being found; this is logged, and the job goes on. The bits of the run do not
// change.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_PROFILE_INTERPRETER_H_
#define LOCKSTEP_WORKER_PROFILE_INTERPRETER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/step_range.h"
#include "engine/engine.h"

namespace lockstep::worker {

class Interpreter : public engine::NodeObserver {
 public:
  // Values of the steps in `dump_steps` go to `dump_dir` (empty: nowhere). `plan` outlives it.
  Interpreter(const engine::Plan* plan, std::string dump_dir, StepRange dump_steps);

  // Tells what runs next. `loss_scale` is that of the step, 1 where losses are not scaled.
  void Enter(int64_t step, int shard, int micro, double loss_scale = 1);

  void BeforeNode(engine::ProgramKind, int) override {}
  // Errors: InvalidArgument for a value that is not finite, naming node, step, shard, element and
  // value, unless a loss scale above 1 may be to blame; those of the file system.
  absl::Status AfterNode(engine::ProgramKind program, int node,
                         absl::Span<const engine::TensorView> outputs) override;

 private:
  absl::Status Dump(const engine::NodeInfo& node, size_t output, const engine::TensorView& view);

  const std::vector<engine::NodeInfo> training_;
  const std::vector<engine::NodeInfo> evaluation_;
  const std::string dump_dir_;
  const StepRange dump_steps_;
  int64_t step_ = 0;
  int shard_ = 0;
  int micro_ = 0;
  double loss_scale_ = 1;
  int64_t overflow_ = 0;  // the newest step whose overflow was logged
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_PROFILE_INTERPRETER_H_
