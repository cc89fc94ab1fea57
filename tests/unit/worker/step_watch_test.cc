// SPDX-License-Identifier: Apache-2.0
#include "worker/step/step_watch.h"

#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

TEST(StepWatchTest, AScopeSaysWhatIsDoneAndThenWhatWasDoneBefore) {
  ProgressBoard board;
  StepWatch watch(&board);
  watch.BeginStep(1, nullptr);
  EXPECT_EQ(board.activity, BETWEEN_STEPS);
  {
    const StepWatch::Scope computing(&watch, COMPUTING, StepPhase::kCompute);
    EXPECT_EQ(board.activity, COMPUTING);
    {
      const StepWatch::Scope reducing(&watch, REDUCING);
      EXPECT_EQ(board.activity, REDUCING);
    }
    EXPECT_EQ(board.activity, COMPUTING);
  }
  EXPECT_EQ(board.activity, BETWEEN_STEPS);
}

TEST(StepWatchTest, AStepThatIsLeftInItsMiddleIsNotShownAsGoingOn) {
  ProgressBoard board;
  StepWatch watch(&board);
  watch.BeginStep(1, nullptr);
  const auto fails = [&]() -> absl::Status {
    const StepWatch::Scope updating(&watch, UPDATING, StepPhase::kUpdate);
    return absl::AbortedError("rank 1 died");
  };
  EXPECT_FALSE(fails().ok());
  EXPECT_EQ(board.activity, BETWEEN_STEPS);
}

}  // namespace
}  // namespace lockstep::worker
