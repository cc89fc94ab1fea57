// SPDX-License-Identifier: Apache-2.0
#include "worker/command/node_setup.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/flock_fault.h"

namespace lockstep::worker {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class NodeSetupTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    flock_error = 0;
    process_.KillAll();
    std::filesystem::remove_all(folder_);
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/node_setup_test-", ::getpid());
  const std::string lock_ = folder_ + "/.setup-here.lock";
  RankProcess process_;
  NodeSetup setup_{folder_, "here", "true"};
};

TEST_F(NodeSetupTest, AFileSystemWithoutLocksIsNotWaitedFor) {
  for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP}) {
    flock_error = error;
    const auto done = setup_.Advance(&process_);
    ASSERT_FALSE(done.ok()) << error;
    const std::string message(done.status().message());
    EXPECT_THAT(message, HasSubstr(lock_));
    EXPECT_THAT(message, HasSubstr(absl::StrCat("errno ", error)));
    EXPECT_THAT(message, HasSubstr("--runs-dir"));
    EXPECT_EQ(absl::IsUnavailable(done.status()), error == ENOLCK) << "it may pass";
  }
  EXPECT_FALSE(process_.running());
}

TEST_F(NodeSetupTest, SaysOnceWhomItWaitsFor) {
  UniqueFd other(::open(lock_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  ASSERT_EQ(::write(other.get(), "4711\n", 5), 5);
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  EXPECT_FALSE(setup_.Advance(&process_).value());
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_THAT(said, HasSubstr("process 4711"));
  EXPECT_THAT(said, HasSubstr(lock_));
  testing::internal::CaptureStdout();
  EXPECT_FALSE(setup_.Advance(&process_).value());
  EXPECT_THAT(testing::internal::GetCapturedStdout(), IsEmpty());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty())
      << "of a command that fails later stderr's last lines are shown, if it has any";
  EXPECT_FALSE(process_.running());
  other.reset();
  EXPECT_FALSE(setup_.Advance(&process_).value()) << "it begins";
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(process_.pid()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(setup_.Advance(&process_).value());
}

}  // namespace
}  // namespace lockstep::worker
