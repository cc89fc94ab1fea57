// SPDX-License-Identifier: Apache-2.0
// Who a user is on this host, what the name service says of it, and who may act as one.
#include "launcher/agent/account.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::HasSubstr;

template <int error>
int Fails(const char*, passwd*, char*, size_t, passwd** found) {
  *found = nullptr;
  return error;
}

// An entry that needs more than 16 KiB, as of a user with a long description.
int NeedsRoom(const char* name, passwd* entry, char* buffer, size_t size, passwd** found) {
  *found = nullptr;
  if (size < (40 << 10)) return ERANGE;
  buffer[0] = '\0';
  entry->pw_name = const_cast<char*>(name);
  entry->pw_dir = buffer;
  entry->pw_uid = 4321;
  entry->pw_gid = 4321;
  *found = entry;
  return 0;
}

TEST(FindAccountTest, WhoIsNotThereIsNotThere) {
  for (const LookUpUser look_up : {&Fails<0>, &Fails<ENOENT>, &Fails<ESRCH>}) {
    const absl::Status status = FindAccount("ann", false, look_up).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("this host has no user 'ann'"));
  }
  EXPECT_EQ(FindAccount("", false, &Fails<EIO>).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(FindAccountTest, ANameServiceThatFailsSaysNothingOfTheUser) {
  for (const LookUpUser look_up : {&Fails<EIO>, &Fails<EMFILE>, &Fails<ERANGE>}) {
    const absl::Status status = FindAccount("ann", false, look_up).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("name service cannot say who 'ann' is"));
  }
}

TEST(FindAccountTest, ALargeEntryGetsTheRoomThatItNeeds) {
  const auto account = FindAccount("ann", false, &NeedsRoom);
  ASSERT_TRUE(account.ok()) << account.status();
  EXPECT_EQ(account->uid, 4321);
}

constexpr uid_t kUser = 20001;

// What `body` says on a thread that lacks a capability.
absl::Status Without(int capability, const std::function<absl::Status()>& body) {
  absl::Status status;
  Thread("without", [&] {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
    ASSERT_EQ(::syscall(SYS_capget, &header, sets), 0);
    sets[CAP_TO_INDEX(capability)].effective &= ~CAP_TO_MASK(capability);
    ASSERT_EQ(::syscall(SYS_capset, &header, sets), 0);
    status = body();
  }).Join();
  return status;
}

TEST(AsUsersTest, SaysWhichCapabilityIsMissing) {
  if (::geteuid() != 0) {
    EXPECT_THAT(CheckRunsAsUsers().message(), HasSubstr("--as-users needs root"));
    GTEST_SKIP() << "only root has capabilities to lose";
  }
  EXPECT_TRUE(CheckRunsAsUsers().ok()) << CheckRunsAsUsers();
  EXPECT_EQ(::getuid(), 0u);
  const std::pair<int, const char*> names[] = {
      {CAP_SETGID, "CAP_SETGID"}, {CAP_SETUID, "CAP_SETUID"}, {CAP_KILL, "CAP_KILL"}};
  for (const auto& [capability, name] : names) {
    const absl::Status status = Without(capability, CheckRunsAsUsers);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
}

TEST(AsUsersTest, WhoMayNotActAsAnAccountActsAsBefore) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root acts as others";
  for (const int capability : {CAP_SETGID, CAP_SETUID}) {
    const absl::Status status = Without(capability, []() -> absl::Status {
      const auto groups = [] {
        std::vector<gid_t> listed(static_cast<size_t>(::getgroups(0, nullptr)));
        ::getgroups(static_cast<int>(listed.size()), listed.data());
        return listed;
      };
      const std::vector<gid_t> before = groups();
      absl::Status became;
      {
        AsAccount as;
        became = as.Become(Account{"user", "/", kUser, kUser, {kUser}});
        EXPECT_FALSE(IsAsAccount());
      }
      EXPECT_EQ(FileUser(), 0u);
      EXPECT_EQ(groups(), before);
      return became;
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  }
}

}  // namespace
}  // namespace lockstep::launcher
