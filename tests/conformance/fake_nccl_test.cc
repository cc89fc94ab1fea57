// SPDX-License-Identifier: Apache-2.0
// What the fake NCCL itself does as the library would.
#include <sys/socket.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/emulation/fake_nccl_interface.h"

namespace lockstep {
namespace {

fake_nccl::InterfaceAddress At(const std::string& interface, sa_family_t family) {
  fake_nccl::InterfaceAddress at;
  at.interface = interface;
  at.address.ss_family = family;
  return at;
}

TEST(FakeNccl, TakesTheInterfaceThatIsAskedFor) {
  const std::vector<fake_nccl::InterfaceAddress> there = {
      At("lo", AF_INET),   At("docker0", AF_INET), At("eth0", AF_INET6),
      At("eth0", AF_INET), At("eth1", AF_INET),    At("ib0", AF_INET)};
  const auto chosen = [&](const char* wanted, const char* family = nullptr) {
    return fake_nccl::Choose(there, wanted, family);
  };
  EXPECT_EQ(chosen(nullptr), 2);
  EXPECT_EQ(chosen(nullptr, "AF_INET"), 3);
  EXPECT_EQ(chosen("eth1", "AF_INET"), 4);
  EXPECT_EQ(chosen("=eth"), -1);
  EXPECT_EQ(chosen("=eth0,ib0"), 2);
  EXPECT_EQ(chosen("^lo,docker,eth"), 5);
  EXPECT_EQ(chosen("lo"), 0);
  EXPECT_EQ(chosen("wlan"), -1);
  EXPECT_EQ(fake_nccl::Choose({there[0], there[1]}, nullptr, nullptr), 0);
}

}  // namespace
}  // namespace lockstep
