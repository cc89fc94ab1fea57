// SPDX-License-Identifier: Apache-2.0
// Where the algorithms of a GPU's matrix products and convolutions are kept: in the run's folder,
// which its later generations read first, and in the user's cache, which all runs on this host
// share. Thread-safety: thread-safe.
#ifndef LOCKSTEP_WORKER_SETUP_TUNING_FILES_H_
#define LOCKSTEP_WORKER_SETUP_TUNING_FILES_H_

#include <string>
#include <vector>

#include "engine/engine.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

// For engine::Memory::tuning_files; empty when the library chooses.
std::vector<std::string> TuningFiles(const JobSpec& job, const std::string& run_dir);

// resources.cudnn.
engine::CudnnUse CudnnUseOf(const JobSpec& job);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_TUNING_FILES_H_
