// SPDX-License-Identifier: Apache-2.0
// A job must not train on what it writes: its logs and checkpoints would be other data in each run.
// Thread-safety: pure function of the files.
#ifndef LOCKSTEP_WORKER_SETUP_OWN_FILES_H_
#define LOCKSTEP_WORKER_SETUP_OWN_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace lockstep::worker {

// Checks that neither the run's folder, `run_dir`, nor that of the checkpoints lies in a folder
// that is read as a whole (train.data.text). Links to folders are not followed there. Blocks for
// the file system. Errors: InvalidArgument, naming both.
absl::Status CheckOwnFilesAreNoData(const JobSpec& job, const std::string& run_dir);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_SETUP_OWN_FILES_H_
