// SPDX-License-Identifier: Apache-2.0
// From the command line's job to the request that a coordinator gets.
// Thread-safety: pure but for the environment and the working directory.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_SUBMISSION_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_SUBMISSION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/chaos.h"
#include "job/job_file.h"
#include "launcher/cli/arguments.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// The faults that a run is to suffer: those given, and those drawn for this job. Errors:
// InvalidArgument when more are to be drawn than have room in its steps.
absl::StatusOr<std::vector<chaos::Injection>> FaultsOf(const JobArgs& args, const JobSpec& spec);

// The name of this process's user.
std::string UserName();

// The job with the text of its file, which the standard input or a pipe gives once. One that cannot
// be read is as it was: who loads it says why. Blocks as job::ReadJobFile does.
JobArgs WithText(JobArgs args);

// Who counts the GPUs or cores that a job wants a worker for each of: this host, where it runs, or
// the coordinator on the nodes that it gives the job.
enum class Counted { kHere, kByCoordinator };

// Reads the job's file with what the flags change; the problems of both are in the result. Errors:
// Unimplemented for commands; FailedPrecondition when --nproc-per-node=gpu finds no GPU.
absl::StatusOr<job::LoadResult> LoadJob(const JobArgs& args, Counted counted = Counted::kHere);

// The same, of a file without errors that fits its flags. Errors: InvalidArgument with all
// diagnostics of the file (IsDiagnostics); FailedPrecondition when the job has fewer shards than
// the workers asked for.
absl::StatusOr<job::LoadResult> LoadGoodJob(const JobArgs& args, Counted counted = Counted::kHere);

// LoadGoodJob with secrets without a value taken from the environment. Errors: as that;
// InvalidArgument for a secret that the environment does not have; FailedPrecondition when the
// current folder's path is not UTF-8.
absl::StatusOr<SubmitJobRequest> MakeSubmission(const JobArgs& args,
                                                Counted counted = Counted::kHere);

// Returns whether the message of `status` is that of a job file's diagnostics: formatted, to be
// shown as it is.
bool IsDiagnostics(const absl::Status& status);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_SUBMISSION_H_
