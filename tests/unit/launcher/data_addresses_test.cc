// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/data_addresses.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using List = std::vector<std::string>;

const std::vector<InterfaceAddress>& Host() {
  static const auto* const host = new std::vector<InterfaceAddress>{
      {"lo", "127.0.0.1"},
      {"lo", "::1"},
      {"eth0", "192.168.1.7", true, false, 1000},
      {"eth0", "fe80::1", true, false, 1000},
      {"eth0", "2001:db8::7", true, false, 1000},
      {"ib0", "10.1.0.7", true, false, 200000},
      {"eth1", "10.9.0.7", /*up=*/false, false, 400000},
      {"docker0", "172.17.0.1", true, /*is_virtual=*/true},
      {"virbr0", "192.168.122.1", true, /*is_virtual=*/true},
      {"eth2", "169.254.3.4"},
  };
  return *host;
}

List Choose(const std::string& list, const std::string& own, const std::string& seen,
            const std::vector<InterfaceAddress>& all = Host()) {
  const absl::StatusOr<InterfaceFilter> filter = InterfaceFilter::Parse(list);
  EXPECT_TRUE(filter.ok()) << filter.status();
  return ChooseDataAddresses(all, *filter, own, seen);
}

TEST(DataAddressesTest, TheWayToTheCoordinatorComesFirst) {
  const struct {
    std::string list, own, seen;
    List expected;
  } kCases[] = {
      {"", "192.168.1.7", "192.168.1.7", {"192.168.1.7", "2001:db8::7", "10.1.0.7"}},
      {"", "10.1.0.7", "10.1.0.7", {"10.1.0.7", "192.168.1.7", "2001:db8::7"}},
      // Of its family first, where nothing else tells them apart.
      {"", "2001:db8::7", "2001:db8::7", {"2001:db8::7", "192.168.1.7", "10.1.0.7"}},
      // What the coordinator sees does when this host cannot tell, as with a name.
      {"", "", "10.1.0.7", {"10.1.0.7", "192.168.1.7", "2001:db8::7"}},
      // An IPv4 address in IPv6's form is the same one.
      {"", "::ffff:10.1.0.7", "", {"10.1.0.7", "192.168.1.7", "2001:db8::7"}},
      // A coordinator on this host says nothing: the fastest first.
      {"", "127.0.0.1", "127.0.0.1", {"10.1.0.7", "192.168.1.7", "2001:db8::7"}},
      {"", "", "", {"10.1.0.7", "192.168.1.7", "2001:db8::7"}},
      // Translated on its way: what others see comes last.
      {"", "192.168.1.7", "203.0.113.9", {"192.168.1.7", "2001:db8::7", "10.1.0.7", "203.0.113.9"}},
      // The bridge that leads there is no mere bridge.
      {"", "172.17.0.1", "172.17.0.1", {"172.17.0.1", "10.1.0.7", "192.168.1.7", "2001:db8::7"}},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Choose(c.list, c.own, c.seen), ElementsAreArray(c.expected))
        << c.own << " " << c.seen;
  }
}

TEST(DataAddressesTest, TheUserHasTheLastWord) {
  const struct {
    std::string list;
    List expected;
  } kCases[] = {
      {"ib0", {"10.1.0.7"}},
      {"ib0,eth0", {"10.1.0.7", "192.168.1.7", "2001:db8::7"}},
      {"10.0.0.0/8", {"10.1.0.7"}},
      {"2001:db8::/32,ib*", {"2001:db8::7", "10.1.0.7"}},
      {"^ib0", {"192.168.1.7", "2001:db8::7"}},
      {"^2001:db8::7", {"192.168.1.7", "10.1.0.7"}},
      {"eth0,^192.168.0.0/16", {"2001:db8::7"}},
      {"docker0", {"172.17.0.1"}},
      {"lo", {"127.0.0.1", "::1"}},
      {"0.0.0.0/0,^docker0,^lo,^virbr0", {"192.168.1.7", "10.1.0.7"}},
      {"nosuch", {}},
      {"eth1", {}},  // it is down
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Choose(c.list, "192.168.1.7", "192.168.1.7"), ElementsAreArray(c.expected))
        << c.list;
  }
  EXPECT_THAT(Choose("^203.0.113.0/24", "192.168.1.7", "203.0.113.9"),
              ElementsAre("192.168.1.7", "2001:db8::7", "10.1.0.7"));
}

TEST(DataAddressesTest, AHostWithNothingElseHasItsLoopback) {
  const std::vector<InterfaceAddress> lonely = {{"lo", "::1"}, {"lo", "127.0.0.1"}};
  EXPECT_THAT(Choose("", "127.0.0.1", "127.0.0.1", lonely), ElementsAre("127.0.0.1"));
  EXPECT_THAT(Choose("", "", "", {{"lo", "::1"}}), ElementsAre("::1"));
  EXPECT_THAT(Choose("^lo", "", "", lonely), IsEmpty());
}

TEST(DataAddressesTest, IPv6Alone) {
  EXPECT_THAT(
      Choose("", "fd00::1", "fd00::1", {{"lo", "::1"}, {"eth0", "fe80::3"}, {"eth0", "fd00::1"}}),
      ElementsAre("fd00::1"));
}

TEST(DataAddressesTest, AFewAreEnough) {
  std::vector<InterfaceAddress> many;
  for (int i = 1; i <= 20; ++i) many.push_back({"eth0", absl::StrCat("10.0.0.", i)});
  EXPECT_EQ(Choose("", "10.0.0.5", "203.0.113.9", many).size(), 8);
  EXPECT_EQ(Choose("", "10.0.0.5", "203.0.113.9", many).front(), "10.0.0.5");
  EXPECT_EQ(Choose("", "10.0.0.5", "203.0.113.9", many).back(), "203.0.113.9");
}

TEST(DataAddressesTest, BadListsAreNamed) {
  for (const char* list : {"eth0,,ib0", "^", "10.0.0.0/33", "eth0/8", "10.0.0.0/x", "e*0", ","}) {
    EXPECT_THAT(InterfaceFilter::Parse(list).status().message(), HasSubstr("eth0,10.0.0.0/8"))
        << list;
  }
}

TEST(DataAddressesTest, TheSystemIsLookedAt) {
  EXPECT_EQ(OwnEndTowards("127.0.0.1:7077"), "127.0.0.1");
  EXPECT_EQ(OwnEndTowards("unix:/run/x.sock"), "");
  EXPECT_EQ(OwnEndTowards("a-name.invalid:7077"), "");
  for (const InterfaceAddress& address : SystemAddresses()) {
    EXPECT_FALSE(address.interface.empty());
    EXPECT_FALSE(address.address.empty());
  }
}

}  // namespace
}  // namespace lockstep::launcher
