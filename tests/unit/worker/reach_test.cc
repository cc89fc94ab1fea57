// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/reach.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

WorkerBootstrap At(const std::string& address) {
  WorkerBootstrap bootstrap;
  bootstrap.set_node_id("node-a");
  bootstrap.set_life_slot(3);
  bootstrap.add_data_addresses(address);
  bootstrap.mutable_assignment()->mutable_spec()->mutable_resources()->set_nodes(1);
  return bootstrap;
}

TEST(MayBeOverHostsTest, AJobOfSeveralNodesIs) {
  WorkerBootstrap bootstrap = At("10.0.0.1");
  bootstrap.mutable_assignment()->mutable_spec()->mutable_resources()->set_nodes(2);
  EXPECT_TRUE(MayBeOverHosts(bootstrap));
  bootstrap.mutable_assignment()->mutable_device()->set_kind("cuda");
  EXPECT_TRUE(MayBeOverHosts(bootstrap));
}

TEST(MayBeOverHostsTest, AJobOfOneNodeMayBeWhereverThereIsRoomUnlessItHasGpus) {
  WorkerBootstrap bootstrap = At("10.0.0.1");
  EXPECT_TRUE(MayBeOverHosts(bootstrap));
  bootstrap.mutable_assignment()->mutable_device()->set_kind("cuda");
  EXPECT_FALSE(MayBeOverHosts(bootstrap));
}

TEST(MayBeOverHostsTest, WithoutAnAddressNobodyElseFindsIt) {
  WorkerBootstrap bootstrap = At("10.0.0.1");
  bootstrap.mutable_assignment()->mutable_spec()->mutable_resources()->set_nodes(2);
  bootstrap.clear_data_addresses();
  EXPECT_FALSE(MayBeOverHosts(bootstrap));
}

TEST(AddressOfTest, EachAddressHasThePortAndThoseOfVersion6HaveBrackets) {
  WorkerBootstrap bootstrap = At("10.0.0.1");
  bootstrap.add_data_addresses("fd00::1");
  const DataPlaneAddress at = AddressOf(bootstrap, "@memory", "a key", 4711);
  EXPECT_THAT(at.tcp(), ElementsAre("10.0.0.1:4711", "[fd00::1]:4711"));
  EXPECT_EQ(at.node_id(), "node-a");
  EXPECT_EQ(at.life_slot(), 3);
  EXPECT_EQ(at.shm(), "@memory");
  EXPECT_EQ(at.key(), "a key");
}

TEST(AddressOfTest, WithoutAPortThereIsMemoryAlone) {
  const DataPlaneAddress at = AddressOf(At("10.0.0.1"), "@memory", "a key", 0);
  EXPECT_THAT(at.tcp(), IsEmpty());
  EXPECT_EQ(at.shm(), "@memory");
}

}  // namespace
}  // namespace lockstep::worker
