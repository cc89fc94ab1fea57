// SPDX-License-Identifier: Apache-2.0
#include "worker/setup/opened_data.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

// Files that are opened, of which the file system says `stamps` one after another.
struct Files {
  std::vector<uint64_t> stamps;
  size_t asked = 0;
  int opened = 0;

  absl::StatusOr<uint64_t> Open() {
    return OpenUnchanged([this] { return stamps.at(asked++); },
                         [this] {
                           ++opened;
                           return absl::OkStatus();
                         });
  }
};

TEST(OpenUnchanged, AsksTheFileSystemOnceBeforeAndOnceAfter) {
  Files files{{7, 7}};
  EXPECT_EQ(files.Open().value(), 7u);
  EXPECT_EQ(files.opened, 1);
  EXPECT_EQ(files.asked, 2u);
}

TEST(OpenUnchanged, WhatChangedMeanwhileIsOpenedAgain) {
  Files files{{7, 8, 8}};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(files.Open().value(), 8u);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("they are opened again"));
  EXPECT_EQ(files.opened, 2);
}

// What it is told to be is what it was before, so that whoever asks later sees that it changed.
TEST(OpenUnchanged, WhatChangesAllTheTimeIsTakenAndSaid) {
  Files files{{7, 8, 9}};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(files.Open().value(), 8u);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("others may see other samples"));
  EXPECT_EQ(files.opened, 2);
}

TEST(OpenUnchanged, WhatCannotBeOpenedIsAnError) {
  EXPECT_EQ(OpenUnchanged([] { return uint64_t{1}; }, [] { return absl::NotFoundError("no"); })
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lockstep::worker
