// SPDX-License-Identifier: Apache-2.0
#include "common/cuda_libraries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/durable_file.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Paths() {
  return CudaLibraryPaths("LOCKSTEP_TEST_LIBRARY", "libx.so.1", "x");
}

TEST(CudaLibraryPaths, WhatTheEnvironmentNamesIsAll) {
  ::setenv("LOCKSTEP_TEST_LIBRARY", "/own/x.so", 1);
  EXPECT_THAT(Paths(), ElementsAre("/own/x.so"));
  ::setenv("LOCKSTEP_TEST_LIBRARY", "", 1);
  EXPECT_THAT(Paths(), IsEmpty());
  ::unsetenv("LOCKSTEP_TEST_LIBRARY");
}

TEST(CudaLibraryPaths, TheLoaderIsFirstThenFoldersThenWheels) {
  const std::string python = absl::StrCat(testing::TempDir(), "/python-", ::getpid());
  const std::string folder = python + "/lib/python3.11/site-packages/nvidia/x/lib";
  ASSERT_TRUE(CreateFolders(folder).ok());
  std::ofstream(folder + "/libx.so.1") << "x";
  ::setenv("LOCKSTEP_CUDA_LIBRARIES", "/one:/two", 1);
  ::setenv("VIRTUAL_ENV", python.c_str(), 1);
  const std::vector<std::string> paths = Paths();
  ASSERT_GE(paths.size(), 4u);
  EXPECT_EQ(paths[0], "libx.so.1");
  EXPECT_EQ(paths[1], "/one/libx.so.1");
  EXPECT_EQ(paths[2], "/two/libx.so.1");
  EXPECT_THAT(paths, Contains("/usr/local/cuda/lib64/libx.so.1"));
  EXPECT_THAT(paths, Contains(folder + "/libx.so.1"));
}

// A virtual environment that nobody activated: its interpreter, a link, is on the path.
TEST(CudaLibraryPaths, TheInterpretersPrefixIsLookedAt) {
  const std::filesystem::path folder = std::filesystem::canonical(testing::TempDir());
  const std::string python = absl::StrCat(folder.string(), "/inactive-", ::getpid());
  const std::string base = python + "-base";
  std::vector<std::string> expected;
  for (const std::string& prefix : {python, base}) {
    expected.push_back(prefix + "/lib/python3.11/site-packages/nvidia/x/lib/libx.so.1");
    ASSERT_TRUE(CreateFolders(prefix + "/bin").ok());
    ASSERT_TRUE(CreateFolders(expected.back().substr(0, expected.back().rfind('/'))).ok());
    std::ofstream(expected.back()) << "x";
  }
  std::ofstream(base + "/bin/python3") << "x";
  ASSERT_EQ(::chmod((base + "/bin/python3").c_str(), 0755), 0);
  ASSERT_EQ(::symlink((base + "/bin/python3").c_str(), (python + "/bin/python3").c_str()), 0);
  const std::string before = std::getenv("PATH");
  ::unsetenv("VIRTUAL_ENV");
  ::setenv("PATH", absl::StrCat("/nowhere:", python, "/bin:", before).c_str(), 1);
  const std::vector<std::string> paths = Paths();
  ::setenv("PATH", before.c_str(), 1);
  for (const std::string& path : expected) EXPECT_THAT(paths, Contains(path));
}

// As of a service's agent whose home was another user's before.
TEST(CudaLibraryPaths, RootTakesNothingOfAnothersHome) {
  if (::geteuid() != 0) GTEST_SKIP() << "SKIPPED: giving a folder away needs root";
  const std::string home = absl::StrCat(testing::TempDir(), "/home-", ::getpid());
  const std::string folder = home + "/.local/lib/python3.11/site-packages/nvidia/x/lib";
  ASSERT_TRUE(CreateFolders(folder).ok());
  std::ofstream(folder + "/libx.so.1") << "x";
  const char* const before = std::getenv("HOME");
  const std::string own = before == nullptr ? "" : before;
  ::setenv("HOME", home.c_str(), 1);
  EXPECT_THAT(Paths(), Contains(folder + "/libx.so.1"));
  ASSERT_EQ(::chown(home.c_str(), 20001, 20001), 0);
  EXPECT_THAT(Paths(), testing::Not(Contains(folder + "/libx.so.1")));
  ::setenv("HOME", own.c_str(), 1);
}

}  // namespace
}  // namespace lockstep
