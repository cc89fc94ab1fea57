// SPDX-License-Identifier: Apache-2.0
// What a coordinator makes of a journal: of an older and of a later version, of a restored one, and
// of one that others have left behind.
#include "coordinator/service/beginning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/journal.pb.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Beginning> BeginWith(Store& store) {
  return Begin(&store, Options(), absl::UnixEpoch());
}

std::string RowOf(Store& store, const std::string& key) {
  const auto rows = store.GetAll();
  for (const StoredRow& row : *rows) {
    if (row.key == key) return row.value;
  }
  return "none";
}

Put Schema(int version) {
  SchemaRecord schema;
  schema.set_version(version);
  schema.set_written_by("9.9");
  return {"schema", schema.SerializeAsString()};
}

TEST(Beginning, CountsCoordinators) {
  const auto store = MakeMemoryStore();
  const auto first = BeginWith(*store);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = BeginWith(*store);
  EXPECT_EQ(first->speaker.epoch, 1);
  EXPECT_EQ(second->speaker.epoch, 2);
  EXPECT_EQ(first->speaker.cluster_id, second->speaker.cluster_id);
}

TEST(Beginning, TakesTheVersionBeforeOver) {
  const auto store = MakeMemoryStore();
  CoordinatorRecord record;  // all that version 1 had
  record.set_lives(7);
  record.set_cluster_id("c");
  record.set_secret("s");
  ASSERT_TRUE(store->PutBatch({{"coordinator", record.SerializeAsString()}}).ok());
  const auto beginning = BeginWith(*store);
  ASSERT_TRUE(beginning.ok()) << beginning.status();
  EXPECT_EQ(beginning->speaker.epoch, 8);
  EXPECT_EQ(beginning->speaker.cluster_id, "c");
  SchemaRecord schema;
  ASSERT_TRUE(schema.ParseFromString(RowOf(*store, "schema")));
  EXPECT_EQ(schema.version(), kJournalVersion);
}

TEST(Beginning, LeavesALaterVersionAlone) {
  const auto store = MakeMemoryStore();
  ASSERT_TRUE(store->PutBatch({Schema(kJournalVersion + 1)}).ok());
  const auto beginning = BeginWith(*store);
  EXPECT_EQ(beginning.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(beginning.status().message(), HasSubstr("written by coordinator 9.9"));
  EXPECT_THAT(beginning.status().message(), HasSubstr("start that version"));
  EXPECT_EQ(RowOf(*store, "coordinator"), "none");
}

TEST(Beginning, ARestoredJournalHasAHigherEpochThanItsBackup) {
  const auto store = MakeMemoryStore();
  ASSERT_TRUE(BeginWith(*store).ok());
  std::vector<StoredRow> rows = *store->GetAll();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(BeginWith(*store).ok());  // after the backup
  ASSERT_TRUE(MakeRestored(rows).ok());
  const auto restored = MakeMemoryStore();
  std::vector<Put> puts;
  for (const StoredRow& row : rows) puts.push_back({row.key, row.value});
  ASSERT_TRUE(restored->PutBatch(puts).ok());
  EXPECT_GT(BeginWith(*restored)->speaker.epoch, BeginWith(*store)->speaker.epoch);
  std::vector<StoredRow> none = {{"other", "x", 1}};
  EXPECT_EQ(MakeRestored(none).code(), absl::StatusCode::kDataLoss);
}

TEST(Beginning, GoesOnAboveWhomSomebodyHasObeyed) {
  const auto store = MakeMemoryStore();
  ASSERT_TRUE(BeginWith(*store).ok());
  ASSERT_TRUE(RaiseEpoch(store.get(), 40).ok());
  ASSERT_TRUE(RaiseEpoch(store.get(), 3).ok());  // lowers nothing
  EXPECT_EQ(BeginWith(*store)->speaker.epoch, 41);
  EXPECT_EQ(RaiseEpoch(store.get(), int64_t{1} << 50).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(BeginWith(*store)->speaker.epoch, 42);
}

}  // namespace
}  // namespace lockstep::coordinator
