// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/opened_data.h"

#include "common/log.h"
#include "common/status.h"
#include "worker/setup/job_plan.h"

namespace lockstep::worker {

bool SavesCheckpoints(const JobSpec& job) {
  return job.has_checkpoint() && !job.checkpoint().dir().empty();
}

absl::Status OpenedData::Open(const JobSpec& job, bool over_hosts, ProgressBoard* board) {
  LS_ASSIGN_OR_RETURN(const data::Source source, DataSource(job.train()));
  for (int tries = 0; tries < 2; ++tries) {
    const uint64_t train = data::StampFiles(source, /*test=*/false);
    const uint64_t both = data::StampFiles(source, /*test=*/true);
    LS_ASSIGN_OR_RETURN(data_, OpenJobData(job));
    const bool evaluates = data_.test != nullptr;
    board->Moved();
    if (data::StampFiles(source, evaluates) == (evaluates ? both : train)) break;
    LS_LOG_WARNING << "files of the job's data were replaced or written to while they were opened"
                   << (tries == 0 ? "; they are opened again"
                                  : ": others may see other samples than this worker");
  }
  return Fingerprint(job, over_hosts, board);
}

absl::Status OpenedData::Fingerprint(const JobSpec& job, bool over_hosts, ProgressBoard* board) {
  const bool evaluates = data_.test != nullptr;
  LS_ASSIGN_OR_RETURN(const data::Source source, DataSource(job.train()));
  if (SavesCheckpoints(job)) identity_ = std::make_unique<DataIdentity>(source, evaluates);
  if (!over_hosts) {
    stamp_ = identity_ != nullptr ? identity_->stamp() : data::StampFiles(source, evaluates);
    return absl::OkStatus();
  }
  LS_ASSIGN_OR_RETURN(files_, data::FingerprintFiles(source, {.test = evaluates}));
  if (identity_ != nullptr) identity_->Know(files_);
  board->Moved();
  return absl::OkStatus();
}

void OpenedData::Tell(WorkerReady* ready) const {
  for (const data::FileFingerprint& file : files_) {
    DataFile& told = *ready->add_data();
    told.set_path(file.path);
    told.set_bytes(static_cast<int64_t>(file.bytes));
    told.set_hash(file.hash);
  }
  ready->set_data_stamp(stamp_);
}

}  // namespace lockstep::worker
