// SPDX-License-Identifier: Apache-2.0
// Brings what a run left on its nodes to this host.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_VERBS_FETCH_H_
#define LOCKSTEP_LAUNCHER_VERBS_FETCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/client/files.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

struct FetchWish {
  std::string job;
  bool logs = false;
  bool model = false;
  bool all = false;
  std::string to = {};  // empty: the run's folder, as far as it is not here
  // Where that is; empty: below this folder, under the run's name.
  std::string run_folder = {};
  // Of the job's model: what another run has left in the run's folder is none. Empty: any is.
  std::string model_sha256 = {};
  // A file that is known to be another model, and not read again. Empty: none is.
  std::string another_model = {};
  // As in LookForModel.
  std::function<bool()> go_on = {};
};

struct FetchedFiles {
  std::string folder;
  // What was written and stays: a file that several hosts share counts once.
  int64_t files = 0;
  int64_t bytes = 0;
  // The run's folder was here already: nothing was fetched.
  bool was_here = false;
  // Why files of some hosts are missing, a sentence each.
  std::vector<std::string> missing;
  // The same of hosts that the job has left, whose files are those of earlier workers.
  std::vector<std::string> left_behind;
};

// One line of JSON, as docs/json_output.md says.
std::string FetchJson(const FetchedFiles& fetched);

enum class ModelFound { kHere, kNotHere, kNotCompared };

// Returns whether `file` is there and has this sha256 (empty: whatever it has), as the result of a
// job says of its model; one that may not be read is taken for it. `go_on`, which may be null, is
// asked between pieces: false ends it, and whether a file that is there is the model is not known.
// Blocks for the disk.
ModelFound LookForModel(const std::string& file, const std::string& sha256,
                        const std::function<bool()>& go_on);

// Blocks. Errors: NotFound (the job; it has no such files); Unavailable (nothing could be fetched,
// with why); Cancelled by the client's Stop, or by `go_on`; those of writing.
absl::StatusOr<FetchedFiles> FetchFiles(coordinator::FilesClient* client, const FetchWish& wish);

// Brings the model of a job that has `ended` well into its run's folder on this host, in the place
// of another run's, unless it lies where the job's result says: one there that was not compared is
// not missed. `run_folder` and `go_on` as in FetchWish. Returns the run's folder; empty: nothing
// was to be brought. Blocks. Errors: as FetchFiles; NotFound, too, when files of a host are
// missing.
absl::StatusOr<std::string> FetchModel(coordinator::FilesClient* client, const JobStatus& ended,
                                       const std::string& run_folder,
                                       const std::function<bool()>& go_on);

// Returns the command that brings the files of a submitted job's run here, "launcher fetch JOB";
// `flags`: those that name the coordinator, with a blank before each. Empty: the run's folder is
// below this process's already, or the job's user is another one, who alone knows it. Where it is
// on its nodes each agent's user may have said (--runs-dir). Blocks for the file system.
std::string FetchCommand(const JobStatus& status, const std::string& flags);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_FETCH_H_
