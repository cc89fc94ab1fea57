// SPDX-License-Identifier: Apache-2.0
// Carries out the faults that a run of `launcher chaos` is to suffer (common/chaos.h), in the
// worker that suffers them; those of the coordinator and of the job in the worker that comes there
// first. Workers of other runs have none.
// Thread-safety: confined to the worker's main thread.
#ifndef LOCKSTEP_WORKER_STEP_FAULT_INJECTOR_H_
#define LOCKSTEP_WORKER_STEP_FAULT_INJECTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/chaos.h"
#include "common/clock.h"

namespace lockstep::worker {

class FaultInjector {
 public:
  // For the worker of `slot` of the job, from the environment. Null: it suffers nothing.
  // Errors: InvalidArgument when the variable cannot be read.
  static absl::StatusOr<std::unique_ptr<FaultInjector>> FromEnvironment(int slot,
                                                                        const std::string& run_dir,
                                                                        const std::string& job_id);

  // Where a flipped bit is to lie.
  void Expose(void* state) { state_ = state; }
  // The worker is at `place` of `step`. Does not return when a fault that ends it is due.
  void At(chaos::Place place, int64_t step);
  // A shard's work took `time`: makes it take longer when the worker is to be slow. A slow worker
  // moves on: `cancelled` is asked again and again meanwhile, as between nodes; true ends it.
  void Slow(Clock* clock, absl::Duration time, const std::function<bool()>& cancelled) const;

 private:
  struct Due {
    chaos::Injection injection;
    int number;
  };
  FaultInjector(std::string run_dir, std::string job_id, double factor)
      : run_dir_(std::move(run_dir)), job_id_(std::move(job_id)), factor_(factor) {}
  // Returns whether this is the first time; marks it. `pid`: the process that suffers it.
  bool Mark(int number, int pid) const;

  const std::string run_dir_, job_id_;
  const double factor_;
  std::vector<Due> due_;
  void* state_ = nullptr;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STEP_FAULT_INJECTOR_H_
