// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/submission.h"

#include <stdlib.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(SubmissionTest, AHiddenSecretIsTakenFromTheEnvironmentAgain) {
  JobArgs args;
  args.command = {"true"};
  args.sets = {"secrets.LOCKSTEP_TEST_TOKEN=\"***\""};
  const absl::Status missing = MakeSubmission(args).status();
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr("secret LOCKSTEP_TEST_TOKEN, which its file shows as ***"));
  EXPECT_FALSE(IsDiagnostics(missing));
  ::setenv("LOCKSTEP_TEST_TOKEN", "hush", 1);
  auto request = MakeSubmission(args);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->spec().secrets().at("LOCKSTEP_TEST_TOKEN"), "hush");
  ::setenv("LOCKSTEP_TEST_TOKEN", "hush\xe9", 1);
  EXPECT_THAT(std::string(MakeSubmission(args).status().message()),
              AllOf(HasSubstr("LOCKSTEP_TEST_TOKEN, from the environment, is not UTF-8"),
                    Not(HasSubstr("hush"))));
  ::unsetenv("LOCKSTEP_TEST_TOKEN");
}

TEST(SubmissionTest, DiagnosticsAreToldApart) {
  JobArgs args;
  args.command = {"true"};
  args.sets = {"nmae=x"};
  EXPECT_TRUE(IsDiagnostics(MakeSubmission(args).status()));
  EXPECT_FALSE(IsDiagnostics(absl::InvalidArgumentError("x")));
}

}  // namespace
}  // namespace lockstep::launcher
