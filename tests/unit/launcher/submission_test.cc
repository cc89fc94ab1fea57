// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/submission.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;

SubmitJobRequest Element(JobArgs args, int index) {
  args.array_index = index;
  const auto request = MakeSubmission(args, Counted::kByCoordinator);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? *request : SubmitJobRequest();
}

TEST(SubmissionTest, ElementsOfAnArrayOfACommandHaveNamesOfTheirOwn) {
  JobArgs args;
  args.command = {"python3", "train.py", "--seed=${LOCKSTEP_ARRAY_INDEX}"};
  const JobSpec one = Element(args, 3).spec(), other = Element(args, 4).spec();
  EXPECT_EQ(one.name(), "train-3");
  EXPECT_EQ(other.name(), "train-4");
  EXPECT_THAT(one.run().command(), ElementsAre("python3", "train.py", "--seed=3"));
  EXPECT_EQ(one.env().at("LOCKSTEP_ARRAY_INDEX"), "3");
}

TEST(SubmissionTest, AnElementOfACommandIsNamedBySetWithItsNumber) {
  JobArgs args;
  args.command = {"true"};
  args.sets = {"name=sweep-${LOCKSTEP_ARRAY_INDEX}-lr"};
  EXPECT_EQ(Element(args, 0).spec().name(), "sweep-0-lr");
  EXPECT_EQ(Element(args, 12).spec().name(), "sweep-12-lr");
}

}  // namespace
}  // namespace lockstep::launcher
