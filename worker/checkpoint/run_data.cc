// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/run_data.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/checkpoint/checkpoint_identity.h"

namespace lockstep::worker {
namespace {

constexpr char kOtherData[] = "lockstep/other-data";

}  // namespace

const checkpoint::FoundCheckpoint* FindRunData(const checkpoint::FolderContents& contents,
                                               const std::string& run) {
  for (const checkpoint::FoundCheckpoint& found : contents.checkpoints) {
    if (found.manifest.run == run && !found.manifest.data.empty()) return &found;
  }
  return nullptr;
}

absl::StatusOr<bool> CheckRunData(const ResumeSource& source, DataIdentity* data,
                                  const checkpoint::GoOn& go_on) {
  const absl::StatusOr<checkpoint::FolderContents> contents =
      checkpoint::FindCheckpoints(source.storage, source.folder);
  if (!contents.ok()) return false;  // who resumes or saves there says so
  const checkpoint::FoundCheckpoint* const found = FindRunData(*contents, source.identity.run);
  if (found == nullptr) return false;
  if (found->manifest.data_stamp == data->stamp()) return true;
  checkpoint::Manifest now = source.identity;
  now.data = data->Records(go_on);
  const std::string difference = DataDifferenceOf(found->manifest, now);
  if (difference.empty()) return !now.data.empty();
  const std::string why =
      absl::StrCat(difference, " when this run began, as the checkpoint ", found->path, " says");
  if (source.reproducible) {
    absl::Status other = absl::FailedPreconditionError(absl::StrCat(
        why, ", and a worker that starts now would train on other samples than the others: put ",
        "back what it was"));
    other.SetPayload(kOtherData, absl::Cord());
    return other;
  }
  LS_LOG_WARNING << why << "; workers train on other samples than each other (reproducible: false)";
  return true;
}

bool IsOtherData(const absl::Status& status) { return status.GetPayload(kOtherData).has_value(); }

absl::StatusOr<bool> OpenedAsBegun(Communicator* communicator, const Generation& generation,
                                   bool began, uint64_t stamp, absl::Time deadline) {
  struct Row {
    uint64_t began;
    uint64_t stamp;
  };
  const Row mine{began ? uint64_t{1} : uint64_t{0}, stamp};
  std::vector<Row> rows(static_cast<size_t>(communicator->world_size()));
  LS_RETURN_IF_ERROR(
      communicator->AllGather(&mine, rows.data(), sizeof(Row), DType::kUInt8, deadline));
  if (began || stamp == 0) return began;
  const auto node = [&](size_t rank) -> const std::string& {
    return generation.members(static_cast<int>(rank)).address().node_id();
  };
  const auto own = static_cast<size_t>(communicator->rank());
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (rows[rank].began != 0 && rows[rank].stamp == stamp && node(rank) == node(own)) return true;
  }
  return false;
}

}  // namespace lockstep::worker
