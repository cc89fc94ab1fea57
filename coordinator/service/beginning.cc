// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/beginning.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "proto/journal.pb.h"

namespace lockstep::coordinator {
namespace {

constexpr const char* kCoordinatorKey = "coordinator";
constexpr size_t kClusterIdBytes = 16;
constexpr size_t kSecretBytes = 32;

}  // namespace

absl::StatusOr<Beginning> Begin(Store* store, const Options& limits, absl::Time now) {
  LS_ASSIGN_OR_RETURN(std::vector<StoredRow> stored, store->GetAll());
  CoordinatorRecord record;
  int64_t revision = 0;
  Beginning beginning;
  std::vector<Row> rows;
  for (StoredRow& row : stored) {
    if (row.key == kCoordinatorKey) {
      if (!record.ParseFromString(row.value)) {
        return absl::DataLossError(
            absl::StrCat("row '", kCoordinatorKey, "' of the journal is damaged"));
      }
      revision = row.revision;
    } else if (IsRequestRow(row.key)) {
      LS_ASSIGN_OR_RETURN(StoredRequest request, ParseRequestRow({row.key, row.value}));
      beginning.requests.push_back(std::move(request));
    } else {
      rows.push_back({std::move(row.key), std::move(row.value)});
    }
  }
  record.set_lives(record.lives() + 1);
  if (record.cluster_id().empty()) record.set_cluster_id(RandomHex(kClusterIdBytes));
  if (record.secret().empty()) record.set_secret(RandomHex(kSecretBytes));
  const Put put = {kCoordinatorKey, record.SerializeAsString(), revision};
  LS_RETURN_IF_ERROR(store->PutBatch({put}).status());
  LS_ASSIGN_OR_RETURN(beginning.state, Restore(rows, limits, now));
  beginning.state.secret = record.secret();
  beginning.speaker = {record.cluster_id(), record.lives()};
  return beginning;
}

}  // namespace lockstep::coordinator
