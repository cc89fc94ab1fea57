// SPDX-License-Identifier: Apache-2.0
// Where what was measured is kept: the algorithms of a GPU's matrix products and convolutions in
// the run's folder, which its later generations read first, and in the user's cache, which all runs
// on this host share; the choice of a CPU's kernels in the latter. Thread-safety: thread-safe.
#ifndef LOCKSTEP_WORKER_SETUP_TUNING_FILES_H_
#define LOCKSTEP_WORKER_SETUP_TUNING_FILES_H_

#include <string>
#include <vector>

#include "engine/engine.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

// For engine::Memory::tuning_files; empty when the library chooses.
std::vector<std::string> TuningFiles(const JobSpec& job, const std::string& run_dir);

// Where the choice of the CPU's kernels is kept; empty: nowhere.
std::string KernelFile();

// resources.cudnn.
engine::CudnnUse CudnnUseOf(const JobSpec& job);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_TUNING_FILES_H_
