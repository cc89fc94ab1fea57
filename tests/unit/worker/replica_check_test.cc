// SPDX-License-Identifier: Apache-2.0
#include "worker/state/replica_check.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/group_members.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RanksThatDiffer, TheMajorityIsRight) {
  EXPECT_THAT(RanksThatDiffer({7}), IsEmpty());
  EXPECT_THAT(RanksThatDiffer({7, 7, 7}), IsEmpty());
  EXPECT_THAT(RanksThatDiffer({7, 8, 7}), ElementsAre(1));
  EXPECT_THAT(RanksThatDiffer({8, 7, 9, 7, 7}), ElementsAre(0, 2));
}

TEST(RanksThatDiffer, WithoutAMajorityAllMayBeWrong) {
  EXPECT_THAT(RanksThatDiffer({7, 8}), ElementsAre(0, 1));
  EXPECT_THAT(RanksThatDiffer({7, 7, 8, 8}), ElementsAre(0, 1, 2, 3));
}

// CheckReplicas on as many ranks as there are states.
std::vector<absl::Status> Check(const std::vector<std::string>& states) {
  FakeNetwork network;
  std::vector<std::unique_ptr<FakeTransport>> transports;
  for (size_t r = 0; r < states.size(); ++r) {
    transports.push_back(std::make_unique<FakeTransport>(&network, 4096));
  }
  const std::vector<GroupMember> members =
      GroupMembers(transports, [](const auto& transport) -> Transport& { return *transport; });
  std::vector<absl::Status> results(states.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < states.size(); ++r) {
    threads.emplace_back([&, r] {
      const absl::Time deadline = absl::Now() + absl::Seconds(30);
      auto communicator =
          transports[r]->Connect({1, "job", "", members, static_cast<int>(r)}, deadline);
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      results[r] =
          CheckReplicas(communicator->get(), states[r].data(), states[r].size(), 9, deadline);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(CheckReplicas, NamesTheRankWhoseStateDiffers) {
  for (const absl::Status& status : Check({"state", "state", "state"})) EXPECT_TRUE(status.ok());
  const std::vector<absl::Status> results = Check({"state", "stat3", "state"});
  EXPECT_TRUE(absl::IsAborted(results[0]));
  EXPECT_TRUE(absl::IsAborted(results[2]));
  EXPECT_TRUE(absl::IsDataLoss(results[1]));
  EXPECT_THAT(std::string(results[1].message()),
              HasSubstr("after step 9 the training state of rank 1 is not that of the other"));
}

TEST(CheckReplicas, TwoRanksCannotTellWhoIsRight) {
  for (const absl::Status& status : Check({"state", "stat3"})) {
    EXPECT_TRUE(absl::IsDataLoss(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("of ranks 0, 1 differ"));
  }
}

}  // namespace
}  // namespace lockstep::worker
