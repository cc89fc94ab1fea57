// SPDX-License-Identifier: Apache-2.0
// Looks at every value as soon as it is made: the first NaN or infinite one ends the job with the
// node's name, and values can be written as .npy files. The bits of the run do not change.
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

  // Tells what runs next.
  void Enter(int64_t step, int shard, int micro);

  void BeforeNode(engine::ProgramKind, int) override {}
  // Errors: InvalidArgument for a value that is not finite, naming node, step, shard, element and
  // value; those of the file system.
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
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_PROFILE_INTERPRETER_H_
