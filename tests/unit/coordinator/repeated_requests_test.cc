// SPDX-License-Identifier: Apache-2.0
// What a user asks for again, as the first try broke off: the second is told when it was done.
#include <gtest/gtest.h>

#include "common/already_so.h"
#include "coordinator/core/core.h"
#include "tests/unit/coordinator/cluster.h"

namespace lockstep::coordinator {
namespace {

class RepeatedRequestsTest : public testing::Test {
 protected:
  RepeatedRequestsTest() {
    cluster_.finish_at_once = false;
    cluster_.Submit("j", 1, 2);
    cluster_.Submit("waits", 1, 2);
    cluster_.Quiet();
  }
  absl::Status Ask(const Event& event) {
    cluster_.Step(event);
    return cluster_.effects_.reply;
  }
  Cluster cluster_{1, 2};
};

TEST_F(RepeatedRequestsTest, ARelease) {
  EXPECT_TRUE(Ask(HoldRequested{"waits", false}).ok());
  EXPECT_TRUE(Ask(HoldRequested{"waits", true}).ok());
  EXPECT_TRUE(IsAlreadySo(Ask(HoldRequested{"waits", true})));
  // It has begun since. One that is to be held could not be any more.
  EXPECT_TRUE(IsAlreadySo(Ask(HoldRequested{"j", true})));
  const absl::Status late = Ask(HoldRequested{"j", false});
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_FALSE(IsAlreadySo(late));
}

TEST_F(RepeatedRequestsTest, ACancellation) {
  EXPECT_TRUE(Ask(CancelRequested{"waits", true}).ok());
  EXPECT_TRUE(IsAlreadySo(Ask(CancelRequested{"waits", true})));
  cluster_.finish_at_once = true;
  cluster_.Submit("done", 1, 2);
  EXPECT_TRUE(Ask(CancelRequested{"j", true}).ok());
  cluster_.Quiet();
  ASSERT_EQ(cluster_.job("done").state, SUCCEEDED);
  const absl::Status late = Ask(CancelRequested{"done", false});
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_FALSE(IsAlreadySo(late));
}

TEST_F(RepeatedRequestsTest, AnUndrain) {
  const std::string node = cluster_.state_.nodes.begin()->first;
  EXPECT_TRUE(Ask(DrainRequested{node, "repair", "ann"}).ok());
  EXPECT_TRUE(Ask(UndrainRequested{node}).ok());
  EXPECT_TRUE(IsAlreadySo(Ask(UndrainRequested{node})));
  EXPECT_FALSE(IsAlreadySo(Ask(UndrainRequested{"nobody"})));
}

}  // namespace
}  // namespace lockstep::coordinator
