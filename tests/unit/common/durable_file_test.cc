// SPDX-License-Identifier: Apache-2.0
#include "common/durable_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/fd.h"
#include "common/write_behind.h"
#include "tests/tmpfile_fault.h"

namespace {
int64_t g_flushed = 0;  // bytes that were waited for
int g_error = 0;        // errno of what is asked of the disk
int g_forbidden = 0;    // errno of every call
int g_calls = 0;
}  // namespace

// In place of the C library's.
extern "C" int sync_file_range(int, off64_t, off64_t bytes, unsigned flags) {
  ++g_calls;
  errno = g_forbidden != 0 ? g_forbidden : flags != 0 ? g_error : 0;
  if (errno != 0) return -1;
  if ((flags & SYNC_FILE_RANGE_WAIT_AFTER) != 0) g_flushed += bytes;
  return 0;
}

namespace lockstep {
namespace {

class DurableFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "durable-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static std::string Read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  long Entries() const {
    const std::filesystem::directory_iterator entries(folder_);
    return std::distance(begin(entries), end(entries));
  }
  std::string folder_;
};

TEST_F(DurableFileTest, AppearsWholeAtCommit) {
  const std::string path = folder_ + "/a";
  ASSERT_TRUE(WriteFileDurably(path, "old").ok());
  auto file = DurableFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("new ").ok());
  ASSERT_TRUE(file->Append("text").ok());
  EXPECT_EQ(Read(path), "old");
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(Read(path), "new text");
  EXPECT_EQ(Entries(), 1);
}

TEST_F(DurableFileTest, WithoutCommitNothingIsLeft) {
  {
    auto file = DurableFile::Create(folder_ + "/a");
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Append("text").ok());
  }
  EXPECT_EQ(Entries(), 0);
}

// As over NFS: the file has a name while it is written.
TEST_F(DurableFileTest, WhereAFileNeedsANameWhatTheDeadLeftGoes) {
  tmpfile_error = EOPNOTSUPP;
  const std::string path = folder_ + "/a";
  {
    auto file = DurableFile::Create(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(Entries(), 1);
  }
  EXPECT_EQ(Entries(), 0);
  std::ofstream(folder_ + "/" + kTemporaryPrefix + "a-1a2b3c4d") << "half";
  std::ofstream(folder_ + "/" + kTemporaryPrefix + "b-1a2b3c4d") << "another's";
  auto file = DurableFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Entries(), 2);
  ASSERT_TRUE(WriteFileDurably(path, "other").ok());
  EXPECT_EQ(Entries(), 3) << "one that is being written stays";
  ASSERT_TRUE(file->Append("text").ok());
  ASSERT_TRUE(file->Commit().ok());
  tmpfile_error = 0;
  EXPECT_EQ(Read(path), "text");
  EXPECT_EQ(Entries(), 2);
}

// It has a name between two calls, in which its writer may be killed.
TEST_F(DurableFileTest, WhereAFileNeedsNoNameWhatTheDeadLeftGoesToo) {
  const std::string path = folder_ + "/a";
  const std::string left = folder_ + "/" + kTemporaryPrefix + "a-0000000000000000";
  std::ofstream(left) << "whole, and not in its place";
  ASSERT_TRUE(WriteFileDurably(path, "text").ok());
  EXPECT_EQ(Entries(), 1);
  const UniqueFd held(::open(left.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  ASSERT_TRUE(WriteFileDurably(path, "other").ok());
  EXPECT_EQ(Read(path), "other");
  EXPECT_EQ(Entries(), 2) << "that of a writer at work stays";
}

TEST_F(DurableFileTest, ANameMayBeAsLongAsNamesCanBe) {
  const std::string path = folder_ + "/" + std::string(NAME_MAX, 'a');
  auto file = DurableFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("whole").ok());
  const absl::Status done = file->Commit();
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_EQ(Read(path), "whole");
}

TEST_F(DurableFileTest, MakesFoldersAndRefusesOthersNames) {
  ASSERT_TRUE(WriteFileDurably(folder_ + "/x/y/z", "1").ok());
  EXPECT_EQ(Read(folder_ + "/x/y/z"), "1");
  EXPECT_EQ(WriteFileDurably(folder_ + "/x/y/z/w", "1").code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(WriteFileDurably(folder_ + "/x/y", "1").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CreateFolders(folder_ + "/x/y/z").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(CreateFolders(folder_ + "/x/y").ok());
}

// The flush at the end says nothing while it lasts, and would last as long as all of the file
// takes.
TEST_F(DurableFileTest, ALargeFileIsOnTheDiskButForItsEndBeforeItIsFlushed) {
  const std::string piece(size_t{1} << 20, 'x');
  auto file = DurableFile::Create(folder_ + "/a");
  ASSERT_TRUE(file.ok()) << file.status();
  g_flushed = 0;
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(file->Append(piece).ok());
  EXPECT_GE(g_flushed, int64_t{128} << 20);
  EXPECT_LE(g_flushed, int64_t{300} << 20);
}

// The kernel tells each error of a descriptor once, so that the flush at the end would be fine.
TEST(WriteBehindTest, TellsWhateverTheDiskFailedWith) {
  for (const int error : {EIO, ENOSPC, EDQUOT, EROFS, EACCES, EPERM, ETIMEDOUT, EINVAL}) {
    WriteBehind behind;
    g_error = error;
    EXPECT_EQ(behind.Appended(0, kWriteBehind), error) << error;
  }
  g_error = 0;
}

TEST(WriteBehindTest, WhereTheCallIsForbiddenTheFlushDoesItAll) {
  WriteBehind behind;
  g_forbidden = EPERM;
  g_calls = 0;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(behind.Appended(0, kWriteBehind), 0);
  EXPECT_EQ(g_calls, 1);
  g_forbidden = 0;
}

}  // namespace
}  // namespace lockstep
