// SPDX-License-Identifier: Apache-2.0
#include "launcher/package/package.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/client/package_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/package/ignore.h"
#include "proto/package.pb.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
using coordinator::PackageId;
using coordinator::PackageStore;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(IgnoreRulesTest, LastRuleThatFitsDecides) {
  const IgnoreRules rules("# data\n*.bin\nbuild/\n/top.txt\nsrc/*.o\n**/cache/x\n!keep.bin\n");
  EXPECT_TRUE(rules.Ignores("a/b.bin", false));
  EXPECT_FALSE(rules.Ignores("a/keep.bin", false));
  EXPECT_TRUE(rules.Ignores("a/build", true));
  EXPECT_FALSE(rules.Ignores("a/build", false)) << "a file";
  EXPECT_TRUE(rules.Ignores("top.txt", false));
  EXPECT_FALSE(rules.Ignores("a/top.txt", false));
  EXPECT_TRUE(rules.Ignores("src/a.o", false));
  EXPECT_FALSE(rules.Ignores("src/sub/a.o", false));
  EXPECT_TRUE(rules.Ignores("cache/x", false));
  EXPECT_TRUE(rules.Ignores("a/b/cache/x", false));
  EXPECT_TRUE(rules.Ignores(".git", true));
  EXPECT_FALSE(IgnoreRules("!.git\n").Ignores(".git", true));
}

// What `git check-ignore` answers of these files.
TEST(IgnoreRulesTest, TwoStarsAreThoseOfGit) {
  const std::vector<std::string> files = {
      "a",           "a/b",   "a/x/b",  "a/x/y/b", "b",   "x/a/b", "x/a/y/z/b", "a/q.bin",
      "a/x/y/q.bin", "a/xzy", "a/x/zy", "ab",      "x/b", "x/y/b", "x/b/c",     "a/.h"};
  const std::vector<std::pair<std::string, std::string>> table = {
      {"a/**/b", "a/b a/x/b a/x/y/b"},
      {"a/**", "a/b a/x/b a/x/y/b a/q.bin a/x/y/q.bin a/xzy a/x/zy a/.h"},
      {"**/a/**/b", "a/b a/x/b a/x/y/b x/a/b x/a/y/z/b"},
      {"a/**/*.bin", "a/q.bin a/x/y/q.bin"},
      {"**/b", "a/b a/x/b a/x/y/b b x/a/b x/a/y/z/b x/b x/y/b x/b/c"},
      {"**",
       "a a/b a/x/b a/x/y/b b x/a/b x/a/y/z/b a/q.bin a/x/y/q.bin a/xzy a/x/zy ab x/b x/y/b x/b/c "
       "a/.h"},
      {"a/**/", "a/x/b a/x/y/b a/x/y/q.bin a/x/zy"},
      {"a/x**y", "a/xzy"},
      {"a/**/**/b", "a/b a/x/b a/x/y/b"},
      {"/**/b", "a/b a/x/b a/x/y/b b x/a/b x/a/y/z/b x/b x/y/b x/b/c"},
      {"x/**/b/c", "x/b/c"},
      {"*/b", "a/b x/b x/b/c"},
      {"**b", "a/b a/x/b a/x/y/b b x/a/b x/a/y/z/b ab x/b x/y/b x/b/c"},
  };
  for (const auto& [pattern, expected] : table) {
    const IgnoreRules rules(pattern);
    std::vector<std::string> ignored;
    for (const std::string& file : files) {
      bool stays = rules.Ignores(file, false);
      for (size_t at = file.find('/'); at != file.npos; at = file.find('/', at + 1)) {
        stays = stays || rules.Ignores(file.substr(0, at), true);
      }
      if (stays) ignored.push_back(file);
    }
    EXPECT_EQ(absl::StrJoin(ignored, " "), expected) << pattern;
  }
}

class PackageTest : public ::testing::Test {
 protected:
  PackageTest() : folder_(absl::StrCat(::testing::TempDir(), "/package-", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/in/src");
  }
  ~PackageTest() override { fs::remove_all(folder_); }
  std::string in() const { return folder_ + "/in"; }
  std::string out() const { return folder_ + "/out"; }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(in() + "/" + name, std::ios::binary) << text;
  }
  std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // The package of these bytes in the store was used so many seconds after 1970.
  void UsedAt(const std::string& bytes, time_t seconds) {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (folder_ + "/store/" + PackageId(bytes)).c_str(), times, 0), 0);
  }
  // Returns what comes of unpacking one file or link of this name.
  absl::Status Unpack(const std::string& name, const std::string& link = "") {
    PackedFolder packed;
    packed.add_files()->set_name("good");
    packed.add_files()->set_name(name);
    packed.mutable_files(1)->set_link(link);
    const std::string bytes = packed.SerializeAsString();
    fs::remove_all(out());
    return UnpackFolder(bytes, PackageId(bytes), out());
  }

  const std::string folder_;
};

TEST_F(PackageTest, WhatIsUnpackedIsWhatWasPacked) {
  Write("train.csv", std::string("1,2\0", 4));
  Write("src/run.sh", "#!/bin/sh\n");
  ::chmod((in() + "/src/run.sh").c_str(), 0755);
  Write("big.bin", "x");
  Write(".lockstepignore", "*.bin\n");
  fs::create_symlink("src/run.sh", in() + "/start");
  fs::create_directory(in() + "/empty");
  const auto package = PackFolder(in());
  ASSERT_TRUE(package.ok()) << package.status();
  EXPECT_EQ(package->files, 4);
  ASSERT_TRUE(UnpackFolder(package->bytes, package->id, out()).ok());
  EXPECT_EQ(Read(out() + "/train.csv"), std::string("1,2\0", 4));
  EXPECT_EQ(Read(out() + "/start"), "#!/bin/sh\n");
  EXPECT_TRUE(fs::is_symlink(out() + "/start"));
  EXPECT_EQ(::access((out() + "/src/run.sh").c_str(), X_OK), 0);
  EXPECT_NE(::access((out() + "/train.csv").c_str(), X_OK), 0);
  EXPECT_FALSE(fs::exists(out() + "/big.bin"));
  // The same files are the same package; other bytes are not it.
  fs::copy(in(), folder_ + "/copy", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  EXPECT_EQ(PackFolder(folder_ + "/copy")->id, package->id);
  Write("train.csv", "1,3");
  EXPECT_NE(PackFolder(in())->id, package->id);
  fs::remove_all(out());
  EXPECT_EQ(UnpackFolder(package->bytes + "x", package->id, out()).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(PackageTest, WhatRunsHaveMadeStaysHere) {
  Write("train.py", "x");
  const std::string id = PackFolder(in())->id;
  for (const char* runs : {"/runs", "/results"}) {
    fs::create_directories(in() + runs + "/train-abc");
    Write(std::string(runs) + "/train-abc/rank0.log", "y");
  }
  EXPECT_EQ(PackFolder(in(), in() + "/results")->id, id);
  EXPECT_EQ(PackFolder(in(), in() + "/results/train-abc")->id, id) << "folders without files";
  EXPECT_NE(PackFolder(in())->id, id);
  fs::remove_all(in() + "/results");
  EXPECT_EQ(PackFolder(in())->id, id);
  fs::create_directories(in() + "/src/runs");
  Write("src/runs/own.py", "z");
  EXPECT_EQ(PackFolder(in())->files, 2) << "only at the top";
  Write(".lockstepignore", "!runs/\n");
  EXPECT_EQ(PackFolder(in())->files, 4);
}

TEST_F(PackageTest, WhatCannotBeSentIsNamed) {
  EXPECT_TRUE(absl::IsNotFound(PackFolder(folder_ + "/nowhere").status()));
  fs::create_symlink("../../secret", in() + "/src/way");
  EXPECT_THAT(std::string(PackFolder(in()).status().message()),
              HasSubstr("src/way is a link out of the workdir (../../secret)"));
  fs::remove(in() + "/src/way");
  ::mkfifo((in() + "/pipe").c_str(), 0600);
  EXPECT_THAT(std::string(PackFolder(in()).status().message()),
              HasSubstr("pipe is neither a file nor a folder"));
  fs::remove(in() + "/pipe");
  // Names are text on their way.
  fs::create_directory(in() + "/caf\xe9");
  EXPECT_THAT(std::string(PackFolder(in()).status().message()),
              HasSubstr("the name 'caf\\xe9' is not UTF-8: rename it, or leave it out in"));
  Write(".lockstepignore", "caf*\n");
  EXPECT_TRUE(PackFolder(in()).ok());
  fs::remove(in() + "/.lockstepignore");
  fs::remove(in() + "/caf\xe9");
  fs::create_symlink("caf\xe9", in() + "/src/way");
  EXPECT_THAT(std::string(PackFolder(in()).status().message()),
              HasSubstr("src/way is a link to 'caf\\xe9', which is not UTF-8"));
  fs::remove(in() + "/src/way");
  Write("model.bin", "");
  Write("small", "x");
  fs::resize_file(in() + "/model.bin", coordinator::kMostPackageBytes + 1);
  const absl::Status much = PackFolder(in()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(much));
  EXPECT_THAT(std::string(much.message()),
              AllOf(HasSubstr("the largest: model.bin (67108865 bytes), small"),
                    HasSubstr(".lockstepignore")));
}

TEST_F(PackageTest, NothingLeavesTheFolder) {
  EXPECT_TRUE(Unpack("a/b").ok());
  EXPECT_TRUE(Unpack("a/link", "../good").ok());
  for (const char* name : {"../up", "/etc/x", "a/../../up", "a//b", "", ".", "a/.", "good"}) {
    EXPECT_EQ(Unpack(name).code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_FALSE(fs::exists(out()));
  }
  for (const char* target : {"/etc/passwd", "..", "x/../../good", "a/b/../../../x"}) {
    EXPECT_EQ(Unpack("link", target).code(), absl::StatusCode::kInvalidArgument) << target;
  }
  // A name that leads through a link, or through a file.
  PackedFolder packed;
  packed.add_files()->set_name("way");
  packed.mutable_files(0)->set_link("good");
  packed.add_files()->set_name("way/in");
  const std::string bytes = packed.SerializeAsString();
  fs::remove_all(out());
  EXPECT_FALSE(UnpackFolder(bytes, PackageId(bytes), out()).ok());
  EXPECT_FALSE(Unpack("good/in").ok());
}

TEST_F(PackageTest, TheStoreLetsGoWhatWasUsedTheLongestAgo) {
  for (const bool on_disk : {false, true}) {
    std::set<std::string> needed;
    PackageStore store({.folder = on_disk ? folder_ + "/store" : "",
                        .most_bytes = 25,
                        .in_use = [&] { return needed; }});
    const std::string a(10, 'a'), b(10, 'b'), c(10, 'c');
    ASSERT_TRUE(store.Put(PackageId(a), a).ok());
    ASSERT_TRUE(store.Put(PackageId(b), b).ok());
    if (on_disk) {
      UsedAt(a, 1);
      UsedAt(b, 2);
    }
    EXPECT_TRUE(store.Has(PackageId(a)));
    ASSERT_TRUE(store.Put(PackageId(c), c).ok());
    EXPECT_EQ(*store.Get(PackageId(a)), a);
    EXPECT_TRUE(absl::IsNotFound(store.Get(PackageId(b)).status()));
    EXPECT_EQ(*store.Get(PackageId(c)), c);
    needed = {PackageId(a), PackageId(c)};
    EXPECT_TRUE(absl::IsResourceExhausted(store.Put(PackageId(b), b)));
    EXPECT_EQ(store.Put(PackageId(a), b).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(store.Has("../../etc/passwd"));
  }
}

TEST_F(PackageTest, ADamagedFileOfTheStoreIsNotGiven) {
  PackageStore store({.folder = folder_ + "/store"});
  const std::string id = PackageId("abc");
  ASSERT_TRUE(store.Put(id, "abc").ok());
  std::ofstream(folder_ + "/store/" + id, std::ios::binary) << "abd";
  EXPECT_EQ(store.Get(id).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::IsNotFound(store.Get(id).status()));
}

}  // namespace
}  // namespace lockstep::launcher
