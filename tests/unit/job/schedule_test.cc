// SPDX-License-Identifier: Apache-2.0
#include "job/meaning/schedule.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::job {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ScheduleWarnings, AWarmUpThatIsLongerThanTheRunIsNamed) {
  Schedule schedule;
  EXPECT_THAT(ScheduleWarnings(schedule, 1), IsEmpty());
  schedule.set_warmup_steps(100);
  EXPECT_THAT(ScheduleWarnings(schedule, 100), IsEmpty());
  EXPECT_THAT(ScheduleWarnings(schedule, 99),
              ElementsAre("'train.schedule.warmup_steps': the warm-up of 100 steps does not come "
                          "to its end, as the run's last step is 99"));
}

TEST(ScheduleWarnings, MilestonesBeyondTheLastStepAreNamed) {
  Schedule schedule;
  for (const int milestone : {3000, 4689, 4690, 50000}) {
    schedule.mutable_step()->add_milestones(milestone);
  }
  EXPECT_THAT(ScheduleWarnings(schedule, 50001), IsEmpty());
  EXPECT_THAT(ScheduleWarnings(schedule, 4690),
              ElementsAre("'train.schedule.step.milestones': 4690, 50000 change nothing, as the "
                          "run's last step is 4690"));
  schedule.set_warmup_steps(1);
  EXPECT_THAT(ScheduleWarnings(schedule, 50000),
              ElementsAre("'train.schedule.step.milestones': 50000 changes nothing, as the run's "
                          "last step is 50000, 49999 after the warm-up"));
}

TEST(ScheduleWarnings, AStepThatIsAsLongAsTheRunIsNamed) {
  Schedule schedule;
  schedule.mutable_step()->set_every(10);
  EXPECT_THAT(ScheduleWarnings(schedule, 11), IsEmpty());
  EXPECT_THAT(ScheduleWarnings(schedule, 10),
              ElementsAre("'train.schedule.step.every': 10 changes nothing, as the run's last step "
                          "is 10"));
}

}  // namespace
}  // namespace lockstep::job
