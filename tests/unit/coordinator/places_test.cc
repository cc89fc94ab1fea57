// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/places.h"

#include <gtest/gtest.h>

#include <memory>

namespace lockstep::coordinator {
namespace {

class PlacesTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  Places places_{2, absl::Minutes(20), &clock_};
};

TEST_F(PlacesTest, ThereAreSoMany) {
  std::unique_ptr<Places::Place> first = places_.Take();
  const std::unique_ptr<Places::Place> second = places_.Take();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_EQ(places_.Take(), nullptr);
  first.reset();
  EXPECT_NE(places_.Take(), nullptr);
}

TEST_F(PlacesTest, WhoHasHadItsShareGivesWayWhenAnotherAsks) {
  std::unique_ptr<Places::Place> first = places_.Take();
  clock_.Advance(absl::Minutes(1));
  const std::unique_ptr<Places::Place> second = places_.Take();
  clock_.Advance(absl::Minutes(18));
  EXPECT_EQ(places_.Take(), nullptr);
  EXPECT_TRUE(first->status().ok()) << "within its share";
  clock_.Advance(absl::Minutes(5));
  EXPECT_TRUE(first->status().ok()) << "nobody asks";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(places_.Take(), nullptr);
  EXPECT_EQ(first->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(second->status().ok()) << "one is enough";
  first.reset();
  EXPECT_NE(places_.Take(), nullptr);
}

}  // namespace
}  // namespace lockstep::coordinator
