// SPDX-License-Identifier: Apache-2.0
#include "worker/command/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <set>

#include "common/fd.h"
#include "worker/command/error_file.h"
#include "worker/command/reserved_port.h"

namespace lockstep::worker {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

bool NothingSet(const std::string&) { return false; }

// Ranks 0 and 1 on node a, rank 2 on b.
Generation ThreeRanks() {
  Generation generation;
  generation.set_generation(4);
  for (int rank = 0; rank < 3; ++rank) {
    Member& member = *generation.add_members();
    member.set_rank(rank);
    member.set_incarnation("j." + std::to_string(rank) + ".1");
    member.mutable_address()->set_node_id(rank < 2 ? "a" : "b");
    member.mutable_address()->add_tcp("10.0.0." + std::to_string(rank) + ":4711");
  }
  return generation;
}

TEST(RankPlace, CountsRanksOnTheirNodes) {
  const Generation generation = ThreeRanks();
  const auto second = PlaceInGeneration(generation, "j.1.1");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->rank, 1);
  EXPECT_EQ(second->world_size, 3);
  EXPECT_EQ(second->local_rank, 1);
  EXPECT_EQ(second->local_world_size, 2);
  EXPECT_EQ(second->group_rank, 0);
  EXPECT_EQ(second->group_world_size, 2);
  EXPECT_EQ(second->attempt, 3);
  EXPECT_EQ(second->master_addr, "10.0.0.0");
  EXPECT_EQ(second->master_port, 4711);
  const auto third = PlaceInGeneration(generation, "j.2.1");
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->local_rank, 0);
  EXPECT_EQ(third->group_rank, 1);
  EXPECT_FALSE(PlaceInGeneration(generation, "j.3.1").ok());
}

TEST(RankPlace, OneNodeMeetsAtThisMachine) {
  Generation generation = ThreeRanks();
  generation.mutable_members()->RemoveLast();
  generation.mutable_members(0)->mutable_address()->set_tcp(0, "[fd00::1]:99");
  generation.mutable_members(0)->set_device_uuid("GPU-b");
  generation.mutable_members(1)->set_device_uuid("GPU-a");
  const auto place = PlaceInGeneration(generation, "j.0.1");
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->master_addr, "127.0.0.1");
  EXPECT_EQ(place->master_port, 99);
  EXPECT_EQ(place->gpus, "GPU-b,GPU-a");
}

TEST(RankPlace, TheEnvironmentIsTorchruns) {
  WorkerAssignment assignment;
  assignment.set_job_id("job7");
  assignment.mutable_spec()->mutable_run()->add_command("true");
  assignment.mutable_spec()->mutable_restart()->set_max_restarts(2);
  const auto place = PlaceInGeneration(ThreeRanks(), "j.1.1");
  ASSERT_TRUE(place.ok());
  const auto names = RankEnvironment(*place, assignment, "/e.json", NothingSet);
  for (const char* entry :
       {"RANK=1", "WORLD_SIZE=3", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0",
        "GROUP_WORLD_SIZE=2", "ROLE_RANK=1", "ROLE_WORLD_SIZE=3", "ROLE_NAME=default",
        "MASTER_ADDR=10.0.0.0", "MASTER_PORT=4711", "TORCHELASTIC_RESTART_COUNT=3",
        "TORCHELASTIC_MAX_RESTARTS=2", "TORCHELASTIC_RUN_ID=job7",
        "TORCHELASTIC_ERROR_FILE=/e.json", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "OMP_NUM_THREADS=1"}) {
    EXPECT_THAT(names, Contains(entry));
  }
  EXPECT_THAT(names, Each(Not(StartsWith("CUDA_VISIBLE_DEVICES"))));
  EXPECT_THAT(names, Each(Not(StartsWith("TORCHELASTIC_USE_AGENT_STORE"))));
  // What the user has set stays.
  (*assignment.mutable_spec()->mutable_env())["ROLE_NAME"] = "trainer";
  const auto set = RankEnvironment(*place, assignment, "/e.json", [](const std::string& name) {
    return name == "OMP_NUM_THREADS";
  });
  EXPECT_THAT(set, Each(Not(StartsWith("OMP_NUM_THREADS"))));
  EXPECT_THAT(set, Each(Not(StartsWith("ROLE_NAME"))));
}

TEST(ErrorFile, HoldsAMessage) {
  EXPECT_EQ(ErrorMessage(R"({"message": "boom"})"), "boom");
  EXPECT_EQ(ErrorMessage(R"({"message": {"message": "ValueError: 3", "errorCode": 1,
                             "extraInfo": {"py_callstack": "...", "timestamp": "17"}}})"),
            "ValueError: 3");
  for (const char* bad : {"", "{", "[]", "{}", R"({"message": {}})", R"({"message": 3})"}) {
    EXPECT_EQ(ErrorMessage(bad), "") << bad;
  }
  EXPECT_EQ(ErrorMessage(R"({"message": ")" + std::string(5000, 'x') + R"("})").size(), 1003u);
  EXPECT_EQ(ReadErrorFile("/nowhere/error.json"), "");
}

// Returns whether a socket can listen there, as the command's will.
bool CanListen(int port) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  return ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
         ::listen(socket.get(), 1) == 0;
}

TEST(ReservedPort, IsNobodyElsesUntilItIsReleased) {
  auto port = ReservedPort::Take();
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_FALSE(CanListen(port->port()));
  std::set<int> others;
  for (int i = 0; i < 20; ++i) {
    auto other = ReservedPort::Take();
    ASSERT_TRUE(other.ok());
    others.insert(other->port());
  }
  EXPECT_FALSE(others.contains(port->port()));
  port->Release();
  EXPECT_TRUE(CanListen(port->port()));
}

}  // namespace
}  // namespace lockstep::worker
