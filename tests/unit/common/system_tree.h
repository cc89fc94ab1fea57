// SPDX-License-Identifier: Apache-2.0
// A test that says what the kernel shows in /proc and of control groups.
// Thread-safety: confined to the test's thread.
#ifndef LOCKSTEP_TESTS_UNIT_COMMON_SYSTEM_TREE_H_
#define LOCKSTEP_TESTS_UNIT_COMMON_SYSTEM_TREE_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace lockstep {

class SystemTree : public ::testing::Test {
 protected:
  ~SystemTree() override { std::filesystem::remove_all(root_); }

  // `path` begins with "proc/" or "groups/".
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string proc() const { return root_ / "proc"; }
  std::string groups() const { return root_ / "groups"; }

 private:
  static std::filesystem::path NewFolder() {
    std::string folder = ::testing::TempDir() + "/system-tree-XXXXXX";
    return ::mkdtemp(folder.data());
  }

  const std::filesystem::path root_ = NewFolder();
};

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_UNIT_COMMON_SYSTEM_TREE_H_
