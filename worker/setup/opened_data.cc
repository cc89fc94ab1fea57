// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/opened_data.h"

#include "common/log.h"
#include "common/printable.h"
#include "common/status.h"
#include "worker/control/disk_wait.h"
#include "worker/setup/job_plan.h"

namespace lockstep::worker {

bool SavesCheckpoints(const JobSpec& job) {
  return job.has_checkpoint() && !job.checkpoint().dir().empty();
}

absl::StatusOr<uint64_t> OpenUnchanged(absl::FunctionRef<uint64_t()> stamp,
                                       absl::FunctionRef<absl::Status()> open) {
  uint64_t before = stamp();
  for (bool again = false;; again = true) {
    LS_RETURN_IF_ERROR(open());
    const uint64_t after = stamp();
    if (after == before) return before;
    LS_LOG_WARNING << "files of the job's data were replaced or written to while they were opened"
                   << (again ? ": others may see other samples than this worker"
                             : "; they are opened again");
    if (again) return before;
    before = after;
  }
}

absl::Status OpenedData::Open(const JobSpec& job, bool over_hosts, ProgressBoard* board) {
  LS_ASSIGN_OR_RETURN(const data::Source source, DataSource(job.train()));
  const bool evaluates = job.train().eval().every() != "never";
  const auto open = [&]() -> absl::Status {
    data_ = {};  // its memory and mappings are not held twice
    LS_ASSIGN_OR_RETURN(data_, OpenJobData(job));
    board->Moved();
    if (!over_hosts) return absl::OkStatus();
    LS_ASSIGN_OR_RETURN(files_, data::FingerprintFiles(source, {.test = evaluates}));
    board->Moved();
    return absl::OkStatus();
  };
  LS_ASSIGN_OR_RETURN(
      const uint64_t stamp,
      OpenUnchanged([&] { return data::StampFiles(source, /*test=*/evaluates); }, open));
  if (SavesCheckpoints(job)) identity_ = std::make_unique<DataIdentity>(source, evaluates, stamp);
  if (!over_hosts) {
    stamp_ = stamp;
    return absl::OkStatus();
  }
  if (identity_ != nullptr) identity_->Know(files_);
  return absl::OkStatus();
}

void OpenedData::TellOfChanges(ProgressBoard* board, Clock* clock) const {
  if (identity_ == nullptr) return;
  board->Enter(SAVING);
  bool changed = false;
  WorkOnDisk(board, clock, [&](const std::function<bool()>&) {
    changed = identity_->Changed();
    return absl::OkStatus();
  }).IgnoreError();
  if (!changed) return;
  LS_LOG_WARNING << "files of the data were replaced or written to since this worker opened them: "
                 << "if their contents are others now, the same job gives other bits";
}

void OpenedData::Tell(WorkerReady* ready) const {
  for (const data::FileFingerprint& file : files_) {
    DataFile& told = *ready->add_data();
    told.set_path(PathText(file.path));
    told.set_bytes(static_cast<int64_t>(file.bytes));
    told.set_hash(file.hash);
    told.set_folder(file.folder);
  }
  ready->set_data_stamp(stamp_);
}

}  // namespace lockstep::worker
