// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/beginning.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "coordinator/service/epoch_proof.h"
#include "proto/journal.pb.h"

namespace lockstep::coordinator {
namespace {

constexpr const char* kCoordinatorKey = "coordinator";
constexpr const char* kSchemaKey = "schema";
constexpr int kOldestVersion = 1;
constexpr size_t kClusterIdBytes = 16;
constexpr size_t kSecretBytes = 32;
constexpr int64_t kRestoreJump = 1000;
// Events are numbered above their coordinator's epoch (hub.cc), in 63 bits.

absl::Status Damaged(absl::string_view key) {
  return absl::DataLossError(absl::StrCat("row '", key, "' of the journal is damaged"));
}

absl::Status CheckSchema(const std::string& value) {
  SchemaRecord schema;
  if (!schema.ParseFromString(value)) return Damaged(kSchemaKey);
  if (schema.version() >= kOldestVersion && schema.version() <= kJournalVersion) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the journal has version ", schema.version(), ", written by coordinator ",
      schema.written_by(), ", and this one (", LOCKSTEP_VERSION, ") knows ", kOldestVersion, " to ",
      kJournalVersion, ": start that version, or restore a backup that an earlier one made"));
}

std::string OwnSchema() {
  SchemaRecord schema;
  schema.set_version(kJournalVersion);
  schema.set_written_by(LOCKSTEP_VERSION);
  return schema.SerializeAsString();
}

}  // namespace

absl::StatusOr<Beginning> Begin(Store* store, const Options& limits, absl::Time now) {
  LS_ASSIGN_OR_RETURN(std::vector<StoredRow> stored, store->GetAll());
  CoordinatorRecord record;
  int64_t revision = 0;
  std::string schema;
  Beginning beginning;
  std::vector<Row> rows;
  for (StoredRow& row : stored) {
    if (row.key == kCoordinatorKey) {
      if (!record.ParseFromString(row.value)) return Damaged(row.key);
      revision = row.revision;
    } else if (row.key == kSchemaKey) {
      LS_RETURN_IF_ERROR(CheckSchema(row.value));
      schema = std::move(row.value);
    } else if (IsRequestRow(row.key)) {
      LS_ASSIGN_OR_RETURN(StoredRequest request, ParseRequestRow({row.key, row.value}));
      beginning.requests.push_back(std::move(request));
    } else {
      rows.push_back({std::move(row.key), std::move(row.value)});
    }
  }
  // What cannot be read is left as it is.
  LS_ASSIGN_OR_RETURN(beginning.state, Restore(rows, limits, now));
  if (const absl::Duration leap = beginning.state.leap; leap > absl::ZeroDuration()) {
    LS_LOG_ERROR << "the clock says "
                 << absl::FormatTime("%Y-%m-%d %H:%M UTC", now, absl::UTCTimeZone())
                 << ", and nothing in the journal is of the " << absl::ToInt64Hours(leap) / 24
                 << " days before that: if the clock is wrong, set it and start the coordinator "
                    "again; until then it forgets nobody's use";
  }
  record.set_lives(record.lives() + 1);
  if (record.cluster_id().empty()) record.set_cluster_id(RandomHex(kClusterIdBytes));
  if (record.secret().empty()) record.set_secret(RandomHex(kSecretBytes));
  std::vector<Put> puts = {{kCoordinatorKey, record.SerializeAsString(), revision}};
  if (schema != OwnSchema()) puts.push_back({kSchemaKey, OwnSchema()});
  LS_RETURN_IF_ERROR(store->PutBatch(puts).status());
  beginning.state.secret = record.secret();
  beginning.speaker = {record.cluster_id(), record.lives(),
                       EpochProof(record.secret(), record.lives())};
  return beginning;
}

absl::Status RaiseEpoch(Store* store, int64_t epoch) {
  if (epoch > kMostEpoch) {
    return absl::OutOfRangeError(absl::StrCat("an agent says that it has obeyed coordinator ",
                                              epoch, " of this cluster, and there is none"));
  }
  LS_ASSIGN_OR_RETURN(const std::vector<StoredRow> rows, store->GetAll());
  for (const StoredRow& row : rows) {
    if (row.key != kCoordinatorKey) continue;
    CoordinatorRecord record;
    if (!record.ParseFromString(row.value)) return Damaged(row.key);
    if (record.lives() >= epoch) return absl::OkStatus();
    record.set_lives(epoch);
    return store->PutBatch({{{kCoordinatorKey, record.SerializeAsString(), row.revision}}})
        .status();
  }
  return absl::OkStatus();
}

absl::Status MakeRestored(std::vector<StoredRow>& rows) {
  bool found = false;
  for (StoredRow& row : rows) {
    if (row.key == kSchemaKey) LS_RETURN_IF_ERROR(CheckSchema(row.value));
    if (row.key != kCoordinatorKey) continue;
    CoordinatorRecord record;
    if (!record.ParseFromString(row.value)) return Damaged(row.key);
    record.set_lives(record.lives() + kRestoreJump);
    row.value = record.SerializeAsString();
    found = true;
  }
  if (found) return absl::OkStatus();
  return absl::DataLossError("it holds no coordinator's row, so it is no journal of a coordinator");
}

}  // namespace lockstep::coordinator
