// SPDX-License-Identifier: Apache-2.0
#include "collectives/flight_recorder.h"

#include <atomic>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

Operation Reduce(int64_t sequence) {
  Operation operation;
  operation.kind = OpKind::kTreeReduce;
  operation.sequence = sequence;
  operation.count = sequence;
  operation.step = 812;
  operation.bucket = 3;
  operation.layout = 0x8f3a;  // no text has it
  return operation;
}

TEST(FlightRecorderTest, KeepsTheLastOperations) {
  FlightRecorder recorder(4);
  EXPECT_FALSE(recorder.Latest().has_value());
  EXPECT_THAT(recorder.Snapshot(), testing::IsEmpty());
  for (int i = 1; i <= 6; ++i) {
    recorder.Begin(Reduce(i), 4 * i);
    recorder.Started();
    recorder.End(absl::StatusCode::kOk);
  }
  const std::vector<FlightRecord> records = recorder.Snapshot();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].operation.sequence, 3);
  EXPECT_EQ(records[3].operation, Reduce(6));
  EXPECT_EQ(records[3].bytes, 24);
  EXPECT_EQ(records[3].number, 6u);
  EXPECT_LE(records[3].enqueued_ns, records[3].started_ns);
  EXPECT_LE(records[3].started_ns, records[3].ended_ns);
  EXPECT_EQ(recorder.Snapshot(2).size(), 2u);
}

TEST(FlightRecorderTest, SaysWhereTheRankIs) {
  FlightRecorder recorder(4);
  recorder.Begin(Reduce(4071), 100);
  recorder.Waiting(2);
  auto record = recorder.Latest();
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->stage, OpStage::kArriving);
  EXPECT_EQ(ToString(*record, record->enqueued_ns + 1'500'000'000),
            "step 812, bucket 3, tree_reduce 4071 f32[4071], waiting for rank 2, begun 1.5s ago");
  recorder.Started();
  EXPECT_EQ(recorder.Latest()->stage, OpStage::kMoving);
  EXPECT_EQ(recorder.Latest()->waiting_for, -1);
  recorder.End(absl::StatusCode::kAborted);
  EXPECT_EQ(recorder.Latest()->stage, OpStage::kFailed);
  EXPECT_EQ(recorder.Latest()->code, absl::StatusCode::kAborted);
}

TEST(FlightRecorderTest, CountsHowTheRankComesToReductions) {
  FlightRecorder recorder(8);
  recorder.Begin(Reduce(1), 4);
  recorder.Waiting(2);
  recorder.Started();
  recorder.Waiting(2);  // within the operation: no matter
  recorder.End(absl::StatusCode::kOk);
  recorder.Begin(Reduce(2), 4);
  recorder.Started();
  recorder.End(absl::StatusCode::kOk);
  Operation barrier;
  barrier.kind = OpKind::kBarrier;
  barrier.sequence = 2;
  recorder.Begin(barrier, 0);
  recorder.Started();
  recorder.End(absl::StatusCode::kOk);
  Operation commit;
  commit.kind = OpKind::kWaitCommitted;
  commit.sequence = 900;
  recorder.Begin(commit, 0);
  recorder.End(absl::StatusCode::kOk);
  recorder.Begin(Reduce(3), 4);
  EXPECT_EQ(recorder.LastCompleted(0), 2);
  EXPECT_EQ(recorder.LastCompleted(1), 0);  // another generation
  const ArrivalCounts counts = recorder.Arrivals();
  EXPECT_EQ(counts.reductions, 2);
  EXPECT_EQ(counts.last, 1);
  const auto records = recorder.Snapshot();
  EXPECT_EQ(counts.waited_ns, records[0].started_ns - records[0].enqueued_ns +
                                  records[1].started_ns - records[1].enqueued_ns);
}

TEST(FlightRecorderTest, ReadersNeverSeeATornRecord) {
  FlightRecorder recorder(8);
  std::atomic<bool> stop{false};
  std::atomic<int> read{0};
  std::thread reader([&] {
    while (!stop || read == 0) {
      for (const FlightRecord& record : recorder.Snapshot()) {
        ASSERT_EQ(record.operation.sequence, record.operation.count);
        ASSERT_EQ(record.bytes, record.operation.count * 4);
        ASSERT_EQ(static_cast<int64_t>(record.number), record.operation.sequence);
        ++read;
      }
    }
  });
  for (int i = 1; i <= 20000; ++i) {
    recorder.Begin(Reduce(i), i * 4);
    recorder.End(absl::StatusCode::kOk);
  }
  stop = true;
  reader.join();
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace lockstep
