// SPDX-License-Identifier: Apache-2.0
// Who a user is on this host, and what the name service says of it.
#include "launcher/agent/account.h"

#include <cerrno>
#include <string>

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

}  // namespace
}  // namespace lockstep::launcher
