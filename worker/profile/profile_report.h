// SPDX-License-Identifier: Apache-2.0
// The profiles of all ranks as text, JSON and a trace. Thread-safety: pure functions but for
// WriteRankProfile and MergeProfiles, which write files.
#ifndef LOCKSTEP_WORKER_PROFILE_PROFILE_REPORT_H_
#define LOCKSTEP_WORKER_PROFILE_PROFILE_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/profile.pb.h"

namespace lockstep::worker {

// What a speed is a share of: one thread of this machine.
struct Peak {
  double flops = 0;  // a second
  double bytes = 0;  // a second; 0: there was no memory to measure it with
};

// Returns what holds the step, in one sentence.
std::string ProfileVerdict(const std::vector<RankProfile>& ranks, const Peak& peak);
// The verdict, the phases of every rank, and the nodes (added up over the ranks) in the order of
// `sort`: total, self, average, calls, flops or bytes. `missing`: ranks whose profile is not there.
std::string ProfileText(const std::vector<RankProfile>& ranks, const Peak& peak,
                        const std::string& sort, const std::vector<int>& missing = {});
// The same as one JSON object (docs/profiling.md).
std::string ProfileJson(const std::vector<RankProfile>& ranks, const Peak& peak,
                        const std::string& sort, const std::vector<int>& missing = {});
// Chrome's trace event format: a process for each rank, a lane for computation, communication and
// each loader thread. Hosts are laid beside each other by their wall clocks.
std::string TraceJson(const std::vector<RankProfile>& ranks);

// Writes <run_dir>/profile/rank-<rank>.pb. Errors: those of the file system.
absl::Status WriteRankProfile(const std::string& run_dir, const RankProfile& profile);
struct RunProfile {
  std::vector<RankProfile> ranks;
  std::vector<int> missing;  // ranks whose profile is not there
};
// Reads the profiles that ranks 0 to world - 1 of `job` wrote into `run_dir`: hosts need not share
// the folder, and another job may have had it before. Blocks for the disk.
RunProfile ReadProfiles(const std::string& run_dir, const std::string& job, int world);
// Reads them, measures this machine's peak and writes profile.txt, profile.json and trace.json into
// `run_dir`. Blocks for the disk and the measurement. Errors: those of the file system.
absl::Status MergeProfiles(const std::string& run_dir, const std::string& job, int world,
                           const std::string& sort);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_PROFILE_PROFILE_REPORT_H_
