// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/run_data.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/checkpoint_life.h"
#include "tests/unit/worker/group_members.h"

namespace lockstep::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RunDataTest : public CheckpointerTest {
 protected:
  RunDataTest() {
    fs::create_directory(folder_);
    Write("train.csv", "1,2");
    DataIdentity identity = Open();
    Job job(folder_, 1);
    job.FindData([&](int) { return identity.RecordsAsMade([] { return true; }); });
    job.Enter();
    job.Step();
    job.Complete();
    // Of the host, which a life of this fixture knows nothing of.
    const std::string path = folder_ + "/step-0000000001";
    auto found = checkpoint::FindCheckpoints(checkpoint::Storage::Disk(), path);
    checkpoint::Manifest& manifest = found->checkpoints[0].manifest;
    manifest.data_stamp = identity.stamp();
    std::ofstream(path + "/manifest.json") << checkpoint::FormatManifest(manifest);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  // A worker starts.
  DataIdentity Open() const {
    const data::CsvSource source{folder_ + "/train.csv", ""};
    return {source, false, data::StampFiles(source, false)};
  }
  // Returns what it says, and counts the files that it reads.
  absl::StatusOr<bool> Check(const std::string& run = "run", bool reproducible = true) {
    ResumeSource source;
    source.folder = folder_;
    source.identity.run = run;
    source.reproducible = reproducible;
    DataIdentity identity = Open();
    return CheckRunData(source, &identity, [this] {
      ++read_;
      return true;
    });
  }
  int read_ = 0;
};

TEST_F(RunDataTest, WhatIsAsItWasIsNotRead) {
  EXPECT_TRUE(Check().value());
  EXPECT_EQ(read_, 0);
}

TEST_F(RunDataTest, WhatWasReplacedIsRefused) {
  Write("other", "1,3");
  fs::rename(folder_ + "/other", folder_ + "/train.csv");
  const absl::Status refused = Check().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("train.csv is not what it was when this run began"));
  EXPECT_TRUE(IsOtherData(refused));
  EXPECT_FALSE(IsOtherData(absl::FailedPreconditionError("no such device")));
  EXPECT_TRUE(Check("run", /*reproducible=*/false).ok());
  EXPECT_FALSE(Check("another run").value()) << "no checkpoint says what its data was";
}

// No false alarm.
TEST_F(RunDataTest, WhatHoldsTheSameMayBeAnotherFile) {
  Write("other", "1,2");
  fs::rename(folder_ + "/other", folder_ + "/train.csv");
  EXPECT_TRUE(Check().value());
  EXPECT_EQ(read_, 1);
}

// Two ranks of node a, two of node b: what each finds of itself.
std::vector<bool> Compare(const std::vector<std::pair<bool, uint64_t>>& told) {
  FakeNetwork network;
  std::vector<std::unique_ptr<FakeTransport>> transports;
  Generation generation;
  for (size_t rank = 0; rank < told.size(); ++rank) {
    transports.push_back(std::make_unique<FakeTransport>(&network, 4096));
    Member& member = *generation.add_members();
    member.set_rank(static_cast<int>(rank));
    member.mutable_address()->set_node_id(rank < 2 ? "a" : "b");
  }
  const std::vector<GroupMember> members =
      GroupMembers(transports, [](const auto& transport) -> Transport& { return *transport; });
  std::vector<char> began(told.size());
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < told.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const absl::Time deadline = absl::Now() + absl::Seconds(100);
        auto communicator =
            transports[rank]->Connect({1, "job", "", members, static_cast<int>(rank)}, deadline);
        ASSERT_TRUE(communicator.ok()) << communicator.status();
        began[rank] = OpenedAsBegun(communicator->get(), generation, told[rank].first,
                                    told[rank].second, deadline)
                          .value();
      });
    }
  }
  return {began.begin(), began.end()};
}

TEST(OpenedAsBegun, IsWhoOpenedWhatOneOfItsNodeBeganWith) {
  using Found = std::vector<bool>;
  EXPECT_EQ(Compare({{false, 7}, {true, 7}, {true, 9}, {false, 9}}),
            Found({true, true, true, true}));
  // Stamps of other nodes are other ones; files that were written to have another.
  EXPECT_EQ(Compare({{false, 9}, {true, 7}, {true, 9}, {false, 8}}),
            Found({false, true, true, false}));
  EXPECT_EQ(Compare({{false, 7}, {false, 7}, {false, 7}, {false, 7}}),
            Found({false, false, false, false}));
  EXPECT_EQ(Compare({{false, 0}, {true, 0}}), Found({false, true})) << "not known";
}

}  // namespace
}  // namespace lockstep::worker
