// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_folder.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/recording_storage.h"
#include "tests/unit/checkpoint/resealed_manifest.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

bool Always() { return true; }

class CheckpointFolderTest : public ::testing::Test {
 protected:
  CheckpointFolderTest()
      : own_(absl::StrCat(::testing::TempDir(), "/checkpoints-", ::getpid())),
        folder_(own_ + "/folder") {
    fs::remove_all(own_);
    fs::create_directory(own_);
  }
  ~CheckpointFolderTest() override { fs::remove_all(own_); }

  // Saves a state of one number through `storage_`, as of the run with this number.
  absl::Status Save(int64_t step, int64_t sequence, int64_t best = 0, int64_t generation = 0) {
    const std::string saving = SavingName(step, "test");
    const std::string path = folder_ + "/" + saving;
    if (absl::Status s = storage_.MakeFolder(path); !s.ok()) return s;
    const int64_t value = step * 10;
    auto file = WriteShard(&storage_, path, "model.safetensors",
                           {{"value", "I64", {1}, &value, sizeof(value)}}, Always);
    if (!file.ok()) return file.status();
    Manifest manifest;
    manifest.step = step;
    manifest.sequence = sequence;
    manifest.generation = generation;
    manifest.run = absl::StrCat("run", sequence);
    manifest.train = "{}";
    manifest.best_step = best;
    manifest.files = {*file};
    return Publish(&storage_, folder_, saving, manifest).status();
  }

  // As the run with this number, which saved the newest.
  absl::Status PruneAs(int64_t sequence, int keep, bool alone = true) {
    Manifest own;
    own.sequence = sequence;
    own.run = absl::StrCat("run", sequence);
    return Prune(&storage_, folder_, keep, own, alone);
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const auto found = FindCheckpoints(&storage_, folder_);
    EXPECT_TRUE(found.ok()) << found.status();
    for (const FoundCheckpoint& one : found->checkpoints) steps.push_back(one.manifest.step);
    return steps;
  }
  void Touch(const std::string& name) { std::ofstream(folder_ + "/" + name) << "x"; }

  const std::string own_;
  const std::string folder_;
  RecordingStorage storage_;
};

TEST_F(CheckpointFolderTest, NothingIsDurableAfterTheManifestButItsName) {
  ASSERT_TRUE(Save(500, 1).ok());
  EXPECT_THAT(storage_.done(),
              ElementsAre("mkdir .saving-step-0000000500-test", "create model.safetensors",
                          "append model.safetensors", "append model.safetensors",
                          "append model.safetensors", "sync model.safetensors",
                          "create manifest.json", "append manifest.json", "sync manifest.json",
                          "sync folder .saving-step-0000000500-test", "rename step-0000000500",
                          "sync folder folder", "remove .saving-step-0000000500-test"));
  EXPECT_THAT(Names(), ElementsAre("step-0000000500"));
}

TEST_F(CheckpointFolderTest, WhereverTheDiskFailsWhatWasThereStays) {
  ASSERT_TRUE(Save(100, 1).ok());
  ASSERT_TRUE(Save(200, 2).ok());
  storage_.FailAt(-1, false);
  ASSERT_TRUE(Save(300, 3).ok());
  const int operations = storage_.count();
  fs::remove_all(folder_ + "/step-0000000300");
  for (const bool all : {false, true}) {
    for (int at = 0; at + 1 < operations; ++at) {
      storage_.FailAt(at, all);
      const absl::Status saved = Save(300, 3);
      EXPECT_EQ(saved.code(), absl::StatusCode::kResourceExhausted) << at;
      const std::vector<int64_t> steps = Steps();
      // It is there whole when only the flush after its naming failed; else not at all.
      if (at == operations - 2) {
        EXPECT_THAT(steps, ElementsAre(300, 200, 100)) << at;
      } else {
        EXPECT_THAT(steps, ElementsAre(200, 100)) << at;
      }
      storage_.FailAt(-1, false);
      EXPECT_TRUE(Save(300, 3).ok());
      EXPECT_THAT(Steps(), ElementsAre(300, 200, 100)) << at;
      fs::remove_all(folder_ + "/step-0000000300");
    }
  }
}

TEST_F(CheckpointFolderTest, ACheckpointOfTheSameStepIsReplaced) {
  ASSERT_TRUE(Save(100, 1).ok());
  ASSERT_TRUE(Save(100, 2).ok());
  const auto found = FindCheckpoints(&storage_, folder_);
  ASSERT_THAT(found->checkpoints, SizeIs(1));
  EXPECT_EQ(found->checkpoints[0].manifest.sequence, 2);
  EXPECT_THAT(Names(), ElementsAre("step-0000000100"));
}

TEST_F(CheckpointFolderTest, TheNewestIsWhatWasSavedLast) {
  ASSERT_TRUE(Save(900, 1).ok());
  ASSERT_TRUE(Save(100, 2).ok());  // a run that began anew
  ASSERT_TRUE(Save(200, 3).ok());
  EXPECT_THAT(Steps(), ElementsAre(200, 100, 900));
  // A checkpoint itself can be named too.
  const auto one = FindCheckpoints(&storage_, folder_ + "/step-0000000100");
  ASSERT_THAT(one->checkpoints, SizeIs(1));
  EXPECT_EQ(one->checkpoints[0].manifest.step, 100);
  EXPECT_THAT(FindCheckpoints(&storage_, folder_ + "/nowhere")->checkpoints, IsEmpty());
}

TEST_F(CheckpointFolderTest, InARunTheGenerationComesBeforeTheStep) {
  ASSERT_TRUE(Save(400, 1, 0, 2).ok());
  ASSERT_TRUE(Save(300, 1, 0, 3).ok());  // went on from before 400
  ASSERT_TRUE(Save(900, 1, 0, 1).ok());  // woke up late
  EXPECT_THAT(Steps(), ElementsAre(300, 400, 900));
  ASSERT_TRUE(Save(100, 2, 0, 1).ok());
  EXPECT_THAT(Steps(), ElementsAre(100, 300, 400, 900));
  ASSERT_TRUE(PruneAs(2, /*keep=*/2).ok());
  EXPECT_THAT(Steps(), ElementsAre(100, 300));
}

TEST_F(CheckpointFolderTest, ARunHasOneNumber) {
  const auto number = [&](const std::string& run) {
    return RunNumber(*FindCheckpoints(&storage_, folder_), run);
  };
  EXPECT_EQ(number("run1"), 1);
  ASSERT_TRUE(Save(100, 1).ok());
  ASSERT_TRUE(Save(200, 7).ok());
  EXPECT_EQ(number("run1"), 1);
  EXPECT_EQ(number("run7"), 7);
  EXPECT_EQ(number("another"), 8);
}

TEST_F(CheckpointFolderTest, KeepsTheNewestAndTheBest) {
  for (int64_t i = 1; i <= 6; ++i) {
    Touch("best-000000000" + std::to_string(i) + ".safetensors");
    ASSERT_TRUE(Save(i, i, /*best=*/i < 3 ? i : 2).ok());
  }
  Touch("notes.txt");
  Touch("step-me");
  ASSERT_TRUE(PruneAs(6, /*keep=*/3, /*alone=*/false).ok());
  EXPECT_THAT(Steps(), ElementsAre(6, 5, 4, 2));
  EXPECT_THAT(Names(),
              ElementsAre("best-0000000002.safetensors", "best-0000000003.safetensors",
                          "best-0000000004.safetensors", "best-0000000005.safetensors",
                          "best-0000000006.safetensors", "notes.txt", "step-0000000002",
                          "step-0000000004", "step-0000000005", "step-0000000006", "step-me"))
      << "they may be another run's";
  ASSERT_TRUE(PruneAs(6, /*keep=*/3).ok());
  EXPECT_THAT(Names(), ElementsAre("best-0000000002.safetensors", "best-0000000006.safetensors",
                                   "notes.txt", "step-0000000002", "step-0000000004",
                                   "step-0000000005", "step-0000000006", "step-me"))
      << "a best one that is no older than every checkpoint is the next one's";
  ASSERT_TRUE(PruneAs(6, /*keep=*/1).ok());
  EXPECT_THAT(Steps(), ElementsAre(6, 2));
}

// Of runs that have the folder at the same time each takes away its own ones alone.
TEST_F(CheckpointFolderTest, WhatRivalsSavedStays) {
  for (int64_t i = 1; i <= 3; ++i) {
    Touch(BestName(i));
    ASSERT_TRUE(Save(i, i, /*best=*/i).ok());
  }
  ASSERT_TRUE(PruneAs(2, /*keep=*/1).ok());
  EXPECT_THAT(Names(), ElementsAre(BestName(2), BestName(3), "step-0000000002", "step-0000000003"));
  EXPECT_EQ(Save(3, 2).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Steps(), ElementsAre(3, 2));
}

TEST_F(CheckpointFolderTest, ALinkThatIsThereAlreadyLeavesNothingBesideIt) {
  std::ofstream(own_ + "/one") << "weights";
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Storage::Disk()->Link(own_ + "/one", own_ + "/two", nullptr).ok());
  }
  EXPECT_THAT(*Storage::Disk()->List(own_), testing::ElementsAre("one", "two"));
}

TEST_F(CheckpointFolderTest, WhatCannotBeReadIsLeftAlone) {
  ASSERT_TRUE(Save(100, 1).ok());
  ASSERT_TRUE(Save(200, 2).ok());
  fs::resize_file(folder_ + "/step-0000000100/manifest.json", 20);
  ASSERT_TRUE(PruneAs(2, /*keep=*/1).ok());
  EXPECT_THAT(Names(), ElementsAre("step-0000000100", "step-0000000200"));
  const auto found = FindCheckpoints(&storage_, folder_);
  ASSERT_THAT(found->damaged, SizeIs(1));
  EXPECT_THAT(found->damaged[0], HasSubstr("step-0000000100: manifest: not JSON"));
}

TEST_F(CheckpointFolderTest, WhatTheDeadLeftGoesAndWhatTheLivingWriteStays) {
  ASSERT_TRUE(Save(100, 1).ok());
  const std::string dead = folder_ + "/" + SavingName(200, "dead");
  const std::string alive = folder_ + "/" + SavingName(200, "alive");
  for (const std::string& path : {dead, alive}) {
    fs::create_directory(path);
    std::ofstream(path + "/model.safetensors") << "half";
  }
  fs::create_directory(folder_ + "/.removing-step-0000000050");
  auto hold = storage_.TakeHold(alive, /*exclusive=*/false);
  ASSERT_TRUE(hold.ok() && *hold != nullptr);
  EXPECT_EQ(*storage_.TakeHold(alive, /*exclusive=*/true), nullptr);
  ASSERT_TRUE(Tidy(&storage_, folder_, "me", -1).ok());
  EXPECT_THAT(Names(), ElementsAre(SavingName(200, "alive"), "step-0000000100"));
  hold->reset();
  ASSERT_TRUE(Tidy(&storage_, folder_, "alive", 100).ok());
  EXPECT_THAT(Names(), ElementsAre(SavingName(200, "alive"), "step-0000000100"));
  ASSERT_TRUE(Tidy(&storage_, folder_, "me", -1).ok());
  EXPECT_THAT(Names(), ElementsAre("step-0000000100"));
}

// As over NFS: the file beside a folder says whether somebody writes there.
TEST_F(CheckpointFolderTest, WhereNoFolderIsHeldAFileBesideItIs) {
  using Locks = RecordingStorage::FolderLocks;
  const std::string dead = SavingName(200, "dead");
  const std::string alive = SavingName(200, "alive");
  const std::string older = SavingName(200, "older");  // a version that holds the folder alone
  ASSERT_TRUE(Save(100, 1).ok());
  for (const std::string& name : {dead, alive, older}) fs::create_directory(folder_ + "/" + name);
  for (const std::string& name : {dead, alive}) Touch(name + ".hold");
  Touch(".saving-step-0000000300-gone.hold");
  fs::create_directory(folder_ + "/.removing-step-0000000050");
  auto hold = storage_.TakeHold(folder_ + "/" + alive + ".hold", /*exclusive=*/false);
  ASSERT_TRUE(hold.ok() && *hold != nullptr);
  storage_.SetFolderLocks(Locks::kNone);
  ASSERT_TRUE(Tidy(&storage_, folder_, "me", -1).ok());
  EXPECT_THAT(Names(), ElementsAre(alive, alive + ".hold", older, "step-0000000100"));
  storage_.SetFolderLocks(Locks::kOwnHosts);
  ASSERT_TRUE(Tidy(&storage_, folder_, "me", -1).ok());
  EXPECT_THAT(Names(), ElementsAre(alive, alive + ".hold", "step-0000000100"));
  hold->reset();
  ASSERT_TRUE(Tidy(&storage_, folder_, "alive", 100).ok());
  EXPECT_THAT(Names(), ElementsAre(alive, alive + ".hold", "step-0000000100"));
  ASSERT_TRUE(Tidy(&storage_, folder_, "me", -1).ok());
  EXPECT_THAT(Names(), ElementsAre("step-0000000100"));
}

TEST_F(CheckpointFolderTest, OneThatCannotBeRemovedKeepsNoOther) {
  for (int64_t step = 1; step <= 4; ++step) ASSERT_TRUE(Save(step, 1).ok());
  storage_.FailOn("rename .removing-step-0000000002");
  EXPECT_TRUE(absl::IsResourceExhausted(PruneAs(1, 1)));
  EXPECT_THAT(Names(), ElementsAre("step-0000000002", "step-0000000004"));
  for (const char* name : {".saving-a", ".saving-b", ".saving-c"}) {
    fs::create_directory(folder_ + "/" + name);
  }
  storage_.FailOn("remove .saving-b");
  EXPECT_TRUE(absl::IsResourceExhausted(Tidy(&storage_, folder_, "me", -1)));
  EXPECT_THAT(Names(), ElementsAre(".saving-b", "step-0000000002", "step-0000000004"));
}

// As file browsers and file servers make them.
TEST_F(CheckpointFolderTest, WhatOthersPutIntoACheckpointGoesWithIt) {
  ASSERT_TRUE(Save(1, 1).ok());
  fs::create_directories(folder_ + "/step-0000000001/@eaDir/a/b");
  std::ofstream(folder_ + "/step-0000000001/@eaDir/a/note") << "x";
  fs::create_directory(own_ + "/elsewhere");
  std::ofstream(own_ + "/elsewhere/file") << "x";
  fs::create_directory_symlink(own_ + "/elsewhere", folder_ + "/step-0000000001/@eaDir/link");
  ASSERT_TRUE(Save(2, 1).ok());
  const absl::Status pruned = PruneAs(1, 1);
  EXPECT_TRUE(pruned.ok()) << pruned;
  EXPECT_THAT(Names(), ElementsAre("step-0000000002"));
  EXPECT_TRUE(fs::exists(own_ + "/elsewhere/file")) << "a link was followed";
}

TEST_F(CheckpointFolderTest, FilesAreCheckedByTheirHash) {
  ASSERT_TRUE(Save(100, 1).ok());
  const auto found = FindCheckpoints(&storage_, folder_);
  const FoundCheckpoint& one = found->checkpoints[0];
  const FileRecord& file = one.manifest.files[0];
  EXPECT_TRUE(CheckFile(&storage_, one.path, file, Always).ok());
  EXPECT_EQ(CheckFile(&storage_, one.path, file, [] { return false; }).code(),
            absl::StatusCode::kCancelled);
  const std::string path = one.path + "/" + file.name;
  const auto size = fs::file_size(path);
  for (uintmax_t at = 0; at < size; ++at) {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(stream.get());
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(static_cast<char>(byte ^ 1));
    stream.close();
    EXPECT_EQ(CheckFile(&storage_, one.path, file, Always).code(), absl::StatusCode::kDataLoss)
        << at;
    stream.open(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(byte);
  }
  EXPECT_TRUE(CheckFile(&storage_, one.path, file, Always).ok());
  fs::resize_file(path, size - 1);
  EXPECT_THAT(CheckFile(&storage_, one.path, file, Always).message(), HasSubstr("bytes"));
  fs::remove(path);
  EXPECT_EQ(CheckFile(&storage_, one.path, file, Always).code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointFolderTest, AReadThatFailsSaysNothingOfACheckpoint) {
  ASSERT_TRUE(Save(100, 1).ok());
  ASSERT_TRUE(Save(200, 2, /*best=*/50).ok());
  ASSERT_TRUE(Save(300, 3, /*best=*/60).ok());
  Touch("best-0000000050.safetensors");
  for (const int error : {EIO, EACCES, ENOMEM, ESTALE, EMFILE}) {
    storage_.BeforeReads([error](const std::string& path) {
      return absl::StrContains(path, "0200/") ? ErrnoStatus(error, "open " + path)
                                              : absl::OkStatus();
    });
    const auto found = FindCheckpoints(&storage_, folder_);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(found->damaged, IsEmpty());
    EXPECT_EQ(found->checkpoints[0].manifest.step, 300);
    EXPECT_FALSE(found->unread.ok() || IsDamage(found->unread)) << found->unread;
    EXPECT_THAT(found->unread.message(), HasSubstr("step-0000000200/manifest.json"));
    // What could not be looked at stays, and the best weights that it may know of.
    ASSERT_TRUE(PruneAs(3, /*keep=*/1).ok());
    EXPECT_THAT(Names(), testing::IsSupersetOf({"step-0000000200", "best-0000000050.safetensors"}));
  }
}

TEST_F(CheckpointFolderTest, AFileWithACheckpointsNameIsNone) {
  ASSERT_TRUE(Save(2, 1).ok());
  Touch("step-0000000001");
  const auto found = FindCheckpoints(&storage_, folder_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->unread.ok()) << found->unread;
  EXPECT_THAT(found->checkpoints, SizeIs(1));
  EXPECT_THAT(found->damaged, ElementsAre(HasSubstr("step-0000000001")));
}

// As of something else that is kept there.
TEST_F(CheckpointFolderTest, AManifestThatIsNoCheckpointsHidesNone) {
  ASSERT_TRUE(Save(2, 1).ok());
  std::ofstream(folder_ + "/manifest.json") << "{}";
  EXPECT_THAT(Steps(), ElementsAre(2));
  ASSERT_TRUE(Save(3, 1).ok());
  ASSERT_TRUE(PruneAs(1, /*keep=*/1).ok());
  EXPECT_THAT(Names(), ElementsAre("manifest.json", "step-0000000003"));
}

TEST_F(CheckpointFolderTest, PermissionsAreNoDamage) {
  ASSERT_TRUE(Save(100, 1).ok());
  const std::string one = folder_ + "/step-0000000100";
  const auto as_nobody = [&](const std::function<bool()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      // Root may read everything.
      if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(2);
      ::_exit(body() ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  ASSERT_EQ(::chmod(one.c_str(), 0), 0);
  EXPECT_TRUE(as_nobody([&] {
    const auto found = FindCheckpoints(&storage_, folder_);
    return found.ok() && found->damaged.empty() && absl::IsFailedPrecondition(found->unread);
  }));
  ASSERT_EQ(::chmod(one.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(folder_.c_str(), 0), 0);
  EXPECT_TRUE(as_nobody(
      [&] { return absl::IsFailedPrecondition(FindCheckpoints(&storage_, folder_).status()); }));
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
}

TEST_F(CheckpointFolderTest, WhatANewerVersionWroteIsNotJudgedAndStays) {
  ASSERT_TRUE(Save(100, 1, /*best=*/50).ok());
  Touch(BestName(50));
  MakeNewer(folder_ + "/step-0000000100/manifest.json");
  ASSERT_TRUE(Save(200, 2, /*best=*/150).ok());
  const auto found = FindCheckpoints(&storage_, folder_);
  EXPECT_THAT(found->damaged, IsEmpty());
  EXPECT_TRUE(absl::IsInvalidArgument(found->unread)) << found->unread;
  EXPECT_THAT(found->unread.message(), HasSubstr(folder_ + "/step-0000000100"));
  EXPECT_THAT(Steps(), ElementsAre(200));
  ASSERT_TRUE(PruneAs(2, /*keep=*/1).ok());
  EXPECT_THAT(Names(), ElementsAre(BestName(50), "step-0000000100", "step-0000000200"));
}

TEST_F(CheckpointFolderTest, WhatReadsBackDifferentlyIsNotSaved) {
  ASSERT_TRUE(Save(100, 1).ok());
  for (const char* name : {"model.safetensors", "manifest.json"}) {
    storage_.FlipReads(name);
    storage_.BeforeReads(nullptr);
    if (std::string(name) == "manifest.json") {
      // The manifest is read whole: something else wrote over it.
      storage_.BeforeReads([&](const std::string& path) {
        if (absl::StrContains(path, ".saving-") && absl::EndsWith(path, "manifest.json")) {
          fs::resize_file(path, 10);
        }
        return absl::OkStatus();
      });
    }
    EXPECT_EQ(Save(200, 2).code(), absl::StatusCode::kDataLoss) << name;
  }
  storage_.FlipReads("");
  storage_.BeforeReads(nullptr);
  EXPECT_THAT(Steps(), ElementsAre(100));
}

TEST(MountPointTest, IsThatOfTheDeepestFolderThatIsThere) {
  Storage* const disk = Storage::Disk();
  EXPECT_EQ(*disk->MountPoint("/proc/self/no/such/file"), "/proc");
  EXPECT_EQ(*disk->MountPoint("/no-such-folder/below"), "/");
  const std::string link = absl::StrCat(::testing::TempDir(), "/dangling-", ::getpid());
  fs::remove(link);
  fs::create_symlink("/no-such-folder", link);
  EXPECT_EQ(disk->MountPoint(link + "/below").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(disk->MountPoint(link).status().message(),
              HasSubstr(absl::StrCat("dangling-", ::getpid(), " is a link")));
  fs::remove(link);
}

}  // namespace
}  // namespace lockstep::checkpoint
