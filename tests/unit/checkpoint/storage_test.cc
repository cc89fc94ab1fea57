// SPDX-License-Identifier: Apache-2.0
// Copies from one file system to another: this program's own file, whose name is in /proc.
#include "checkpoint/storage.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/sha256.h"
#include "common/durable_file.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tmpfile_fault.h"
#include "tests/unit/checkpoint/recording_storage.h"
#include "tests/unit/worker/file_limit.h"

namespace {

int link_error = 0;  // that link(2) fails with, as on a file system without links; 0: it works

// Who locks alone has to have it open for writing, as over NFS.
bool locks_want_writing = false;

// Called before rename(2) with the name that goes. May be empty.
std::function<void(const std::string& from)> before_rename;

}  // namespace

// In place of the library's.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (before_rename != nullptr) std::exchange(before_rename, nullptr)(from);
  return ::renameat(AT_FDCWD, from, AT_FDCWD, to);
}
extern "C" int flock(int fd, int operation) noexcept {
  const bool alone = (operation & LOCK_EX) != 0;
  if (locks_want_writing && alone && (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) {
    errno = EBADF;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}
extern "C" int link(const char* from, const char* to) noexcept {
  if (link_error == 0) return ::linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
  errno = link_error;
  return -1;
}

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* kElsewhere = "/proc/self/exe";

class StorageTest : public ::testing::Test {
 protected:
  StorageTest() : folder_(absl::StrCat(::testing::TempDir(), "/storage-", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~StorageTest() override { fs::remove_all(folder_); }
  std::vector<std::string> Names() const { return *disk_->List(folder_); }

  const std::string folder_;
  Storage* const disk_ = Storage::Disk();
};

TEST_F(StorageTest, ACopyThatFailsLeavesNothing) {
  const worker::FileLimit limit(16 << 10);
  EXPECT_EQ(disk_->Link(kElsewhere, folder_ + "/best", nullptr).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StorageTest, WhereThereAreNoLinksACopyIsMade) {
  std::ofstream(folder_ + "/from") << "weights";
  for (const int error : {EXDEV, EPERM, EOPNOTSUPP, EMLINK, ENOSYS}) {
    link_error = error;
    const absl::Status linked = disk_->Link(folder_ + "/from", folder_ + "/to", nullptr);
    link_error = 0;
    EXPECT_TRUE(linked.ok()) << linked;
    EXPECT_EQ(*disk_->Read(folder_ + "/to", 100), "weights");
    EXPECT_TRUE(disk_->Remove(folder_ + "/to").ok());
  }
}

TEST_F(StorageTest, WhatWhoDiedOverACopyLeftGoes) {
  std::ofstream(absl::StrCat(folder_, "/", kSavingPrefix, "best-1a2b3c4d")) << "half";
  const absl::Status tidied = Tidy(disk_, folder_, "me", -1);
  EXPECT_TRUE(tidied.ok()) << tidied;
  EXPECT_THAT(Names(), IsEmpty());
}

// A link has a name of its own until it takes its place, which goes when its writer died there, and
// which whoever tidies may take from the living.
TEST_F(StorageTest, WhatWhoDiedOverALinkLeftGoes) {
  std::ofstream(folder_ + "/from") << "weights";
  std::string beside;
  before_rename = [&](const std::string& from) {
    beside = from;
    EXPECT_TRUE(Tidy(disk_, folder_, "me", -1).ok());
    EXPECT_FALSE(fs::exists(fs::symlink_status(from)));
  };
  const absl::Status linked = disk_->Link(folder_ + "/from", folder_ + "/to", nullptr);
  EXPECT_TRUE(linked.ok()) << linked;
  EXPECT_EQ(*disk_->Read(folder_ + "/to", 100), "weights");
  fs::create_hard_link(folder_ + "/from", beside);
  before_rename = [&](const std::string& from) {
    beside = from;
    EXPECT_TRUE(Tidy(disk_, folder_, "me", -1).ok());
    EXPECT_FALSE(fs::exists(fs::symlink_status(from)));
  };
  EXPECT_TRUE(Tidy(disk_, folder_, "me", -1).ok());
  EXPECT_THAT(Names(), ElementsAre("from", "to"));
  const absl::Status pointed = disk_->Point(folder_ + "/last", "nowhere");
  EXPECT_TRUE(pointed.ok()) << pointed;
  EXPECT_EQ(fs::read_symlink(folder_ + "/last"), "nowhere");
  fs::create_symlink("nowhere", beside);
  EXPECT_TRUE(Tidy(disk_, folder_, "me", -1).ok());
  EXPECT_THAT(Names(), ElementsAre("from", "last", "to"));
}

TEST_F(StorageTest, ACopyAsksBetweenItsPiecesWhetherToGoOn) {
  const std::string to = folder_ + "/best";
  int asked = 0;
  ASSERT_TRUE(disk_->Link(kElsewhere, to, [&] { return ++asked > 0; }).ok());
  EXPECT_GE(asked, static_cast<int>(fs::file_size(to) / (256 << 10)));
  EXPECT_EQ(MatchFile(disk_, to, HashFile(disk_, kElsewhere, nullptr)->sha256, nullptr),
            FileMatch::kSame);
  ASSERT_GT(asked, 2) << "this program is too small";
  const std::string given_up = folder_ + "/other";
  asked = 0;
  EXPECT_EQ(disk_->Link(kElsewhere, given_up, [&] { return ++asked < 3; }).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 3);
  EXPECT_THAT(Names(), ElementsAre("best"));
}

// Over NFS there are no files without a name.
TEST_F(StorageTest, ACopyThatIsBeingMadeIsNotTidiedAway) {
  for (const int error : {0, EOPNOTSUPP}) {
    tmpfile_error = error;
    int tidied = 0;
    ASSERT_TRUE(disk_
                    ->Link(kElsewhere, folder_ + "/best",
                           [&] {
                             tidied += Tidy(disk_, folder_, "me", -1).ok() ? 1 : 0;
                             return true;
                           })
                    .ok());
    tmpfile_error = 0;
    EXPECT_GT(tidied, 0);
    EXPECT_THAT(Names(), ElementsAre("best"));
  }
}

// Who writes them there is not who tidies.
TEST_F(StorageTest, WhatWhoDiedOverBestWeightsLeftGoes) {
  tmpfile_error = EOPNOTSUPP;
  std::string left;
  {
    auto file = DurableFile::Create(folder_ + "/" + BestName(1));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(Tidy(disk_, folder_, "me", -1).ok());
    ASSERT_EQ(Names().size(), 1u);
    left = Names()[0];
  }
  tmpfile_error = 0;
  EXPECT_THAT(Names(), IsEmpty());
  std::ofstream(folder_ + "/" + left) << "half";
  ASSERT_TRUE(Tidy(disk_, folder_, "me", -1).ok());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StorageTest, AFileIsTheOneThatIsWantedOrAnotherOrNotKnown) {
  const std::string path = folder_ + "/best";
  EXPECT_EQ(MatchFile(disk_, path, Sha256Hex("weights"), nullptr), FileMatch::kOther);
  std::ofstream(path) << "weights";
  EXPECT_EQ(MatchFile(disk_, path, Sha256Hex("weights"), nullptr), FileMatch::kSame);
  EXPECT_EQ(MatchFile(disk_, path, Sha256Hex("others"), nullptr), FileMatch::kOther);
  const auto stop = [] { return false; };
  EXPECT_EQ(MatchFile(disk_, path, Sha256Hex("others"), stop), FileMatch::kUnknown);
  RecordingStorage failing;
  failing.BeforeReads([](const std::string& name) { return ErrnoStatus(ESTALE, name); });
  EXPECT_EQ(MatchFile(&failing, path, Sha256Hex("weights"), nullptr), FileMatch::kUnknown);
}

TEST_F(StorageTest, WhereFoldersCannotBeHeldAloneFilesCan) {
  std::ofstream(folder_ + "/file") << "x";
  locks_want_writing = true;
  const auto folder = disk_->TakeHold(folder_, /*exclusive=*/true);
  const auto shared = disk_->TakeHold(folder_, /*exclusive=*/false);
  const auto file = disk_->TakeHold(folder_ + "/file", /*exclusive=*/true);
  locks_want_writing = false;
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(shared.ok() && *shared != nullptr);
  EXPECT_TRUE(file.ok() && *file != nullptr);
}

// Who removes what nobody holds, and who makes it anew and holds it, meet at any point.
TEST(StorageHoldTest, WhatIsHeldIsThere) {
  Storage* const disk = Storage::Disk();
  const std::string path = absl::StrCat(::testing::TempDir(), "/held-", ::getpid());
  std::atomic<bool> done = false;
  std::jthread remover([&] {
    while (!done) {
      const auto hold = disk->TakeHold(path, /*exclusive=*/true);
      if (hold.ok() && *hold != nullptr) EXPECT_TRUE(disk->Remove(path).ok());
    }
  });
  int held = 0, lost = 0;
  for (int i = 0; i < 20'000; ++i) {
    EXPECT_TRUE(disk->MakeFolder(path).ok());
    const auto hold = disk->TakeHold(path, /*exclusive=*/false);
    if (!hold.ok() || *hold == nullptr) continue;
    ++held;
    lost += disk->Create(path + "/file").ok() ? 0 : 1;
  }
  done = true;
  remover.join();
  EXPECT_GT(held, 0);
  EXPECT_EQ(lost, 0);
  EXPECT_TRUE(disk->Remove(path).ok());
}

}  // namespace
}  // namespace lockstep::checkpoint
