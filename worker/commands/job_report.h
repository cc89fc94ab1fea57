// SPDX-License-Identifier: Apache-2.0
// What a job costs: parameters, memory, arithmetic, communication and an estimate of the time of a
// step, from its compiled plan and a quick look at this machine. Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_COMMANDS_JOB_REPORT_H_
#define LOCKSTEP_WORKER_COMMANDS_JOB_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/gpu_roofline.h"
#include "worker/setup/compiled_job.h"

namespace lockstep::worker {

// What this machine can do, measured on one thread.
struct MachineSpeed {
  double flops = 0;  // fp32 operations a second
  double bytes = 0;  // read and written a second
  int cpus = 1;      // that this process may use
};
// Takes about a quarter of a second.
MachineSpeed MeasureMachine();

struct RankCost {
  int rank = 0;
  int shards = 0;
  double flops = 0;         // of one optimizer step
  double bytes_in = 0;      // received in a step: nodes of its slice, then the other slices' sums
  double step_seconds = 0;  // estimated
};

// On paper, without the device.
struct GpuEstimate {
  engine::GpuFigures figures;
  engine::Roofline roofline;
};

struct JobReport {
  std::string name;
  std::string device;
  std::string plan_hash;
  int64_t parameters = 0;
  int64_t dataset_size = 0;
  int64_t total_steps = 0;
  int64_t micro_batch = 0;
  int accumulate = 1;
  int64_t memory_limit = 0;  // 0: none
  int64_t gpu_limit = 0;
  std::string precision;
  bool fp8 = false;
  int recompute_level = 0;          // see engine/passes/recompute.h
  size_t arena_bytes = 0;           // activations and workspace
  size_t without_recompute = 0;     // activations and workspace of the plan that keeps everything
  bool keeps_constants = false;     // Plan::keeps_constants
  bool left_constants_out = false;  // as resources.gpu_memory has no room for them
  MemoryNeed need;
  std::string sharding;               // of the optimizer state, for people; may be empty
  std::string offload;                // what is said of moments that are not on the GPU
  double flops = 0;                   // of one optimizer step, all ranks
  std::vector<std::string> warnings;  // what is allowed and seldom meant, a sentence each
  MachineSpeed machine;               // zeros where it is estimated for a GPU
  std::optional<GpuEstimate> gpu;
  std::vector<RankCost> ranks;
};

// Adds up `compiled`; the times are estimates from `machine`.
JobReport ReportOf(const CompiledJob& compiled, int64_t dataset_size, const MachineSpeed& machine);
// The same with times of that GPU, on paper; `compiled` is for CUDA. What GPUs send each other is
// counted but takes no time.
JobReport ReportOf(const CompiledJob& compiled, int64_t dataset_size,
                   const engine::GpuFigures& gpu);
// For people: a table.
std::string ReportText(const JobReport& report);
// One object on one line, with its line end; docs/json_output.md names the fields.
std::string ReportJson(const JobReport& report);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_JOB_REPORT_H_
