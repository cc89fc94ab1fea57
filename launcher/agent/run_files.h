// SPDX-License-Identifier: Apache-2.0
// The files of a run that are sent to who asks for them: what lies in the run's folder and is an
// ordinary file. No link is followed, on the way to a file or at its end, and nothing outside the
// run's folder is opened.
// Thread-safety: pure functions of the files.
#ifndef LOCKSTEP_LAUNCHER_AGENT_RUN_FILES_H_
#define LOCKSTEP_LAUNCHER_AGENT_RUN_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fd.h"
#include "proto/coordinator_agent.pb.h"
#include "proto/files.pb.h"

namespace lockstep::launcher {

// More files, or more bytes, than these are refused: they are no run's.
inline constexpr size_t kMostRunFiles = 50'000;
inline constexpr int64_t kMostRunBytes = int64_t{64} << 30;
// Small, as the coordinator wants each in time: over a thin line, too.
inline constexpr size_t kPieceBytes = size_t{64} << 10;

// Folders that one may lie in, below the run's.
inline constexpr int kMostRunFolders = 15;

// Returns whether a file or folder of this name is sent and taken: a run's own that can be shown,
// none that is hidden, leaves its folder or has a place further down.
bool IsRunFileName(const std::string& name);

// The run's folder, which is there, opened: `run_dir` and `runs_dir` are the agent's user's own
// wishes, as ChosenRunFolder takes them. Errors: InvalidArgument where the coordinator names no
// run's folder of that job; NotFound; FailedPrecondition where a link stands in the way.
absl::StatusOr<UniqueFd> OpenRunFolder(const SendFiles& wanted, const std::string& run_dir,
                                       const std::string& runs_dir);

// The names below `folder` of the files that are wanted, sorted. Errors: those of reading the
// folders; ResourceExhausted.
absl::StatusOr<std::vector<std::string>> ListRunFiles(int folder, const SendFiles& wanted);

// Takes a piece; false: nobody takes any more.
using PieceSink = std::function<bool(const FilePiece&)>;
// Gives the pieces of a file of `folder` to `sink`, as long as it is when it is opened. Blocks.
// Errors: Cancelled when `sink` takes no more; FailedPrecondition when it is no ordinary file any
// more; DataLoss when it became shorter; those of reading it.
absl::Status SendRunFile(int folder, const std::string& name, const PieceSink& sink);

// The digest of a piece after `before`, which is the file's name for its first one.
std::string PieceDigest(const std::string& before, const std::string& data);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_RUN_FILES_H_
