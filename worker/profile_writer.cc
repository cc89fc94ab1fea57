// SPDX-License-Identifier: Apache-2.0
#include "worker/profile_writer.h"

#include <new>
#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "worker/control/disk_wait.h"
#include "worker/profile/profile_report.h"

namespace lockstep::worker {

ProfileWriter::ProfileWriter(std::string run_dir, std::string job, ProgressBoard* board,
                             Clock* clock)
    : run_dir_(std::move(run_dir)), job_(std::move(job)), board_(board), clock_(clock) {}

absl::Status ProfileWriter::WriteRank(Trainer* trainer, Communicator* communicator, int rank) {
  board_->Enter(SAVING);
  const bool written =
      Try([&] { return WriteRankProfile(run_dir_, trainer->profiler()->Result(rank, job_)); });
  LS_RETURN_IF_ERROR(communicator->Barrier(trainer->Deadline()));
  ranks_ = written && rank == 0 ? communicator->world_size() : 0;
  return absl::OkStatus();
}

void ProfileWriter::Merge(const std::string& sort) {
  if (ranks_ == 0) return;
  board_->Enter(SAVING);
  Try([&] { return MergeProfiles(run_dir_, job_, std::exchange(ranks_, 0), sort); });
}

bool ProfileWriter::Try(const std::function<absl::Status()>& work) {
  const absl::Status done =
      WorkOnDisk(board_, clock_, [&](const std::function<bool()>&) -> absl::Status {
        try {
          return work();
        } catch (const std::bad_alloc&) {
          return absl::ResourceExhaustedError("there is no memory for it");
        }
      });
  if (!done.ok()) {
    LS_LOG_WARNING << "no profile: " << done.message();
  }
  return done.ok();
}

}  // namespace lockstep::worker
