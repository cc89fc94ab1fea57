// SPDX-License-Identifier: Apache-2.0
// Lists of jobs, whole and page by page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ListJobsTest : public ::testing::Test {
 protected:
  void Submit(const std::string& id) {
    SubmitJobRequest request;
    request.mutable_spec()->set_name("mlp");
    request.mutable_spec()->mutable_resources()->set_nodes(1);
    request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
    request.mutable_spec()->mutable_train();
    Step(state_, Submitted{id, request}, now_);
  }
  void Cancel(const std::string& id) {
    Requester admin;
    admin.set_role(ROLE_ADMIN);
    Step(state_, CancelRequested{id, true, admin}, now_);
  }
  ListJobsResponse List(int page_size, const std::string& token = "", bool ended = false) {
    ListJobsRequest request;
    request.set_include_ended(ended);
    request.set_page_size(page_size);
    request.set_page_token(token);
    const absl::StatusOr<ListJobsResponse> listed = ListJobs(state_, request, now_);
    EXPECT_TRUE(listed.ok()) << listed.status();
    return *listed;
  }
  static std::vector<std::string> Ids(const ListJobsResponse& listed) {
    std::vector<std::string> ids;
    for (const JobStatus& job : listed.jobs()) ids.push_back(job.job_id());
    return ids;
  }
  // Page after page.
  std::vector<std::string> All(int page_size, bool ended = false) {
    std::vector<std::string> ids;
    std::string token;
    do {
      const ListJobsResponse page = List(page_size, token, ended);
      EXPECT_LE(page.jobs_size(), page_size);
      for (const std::string& id : Ids(page)) ids.push_back(id);
      token = page.next_page_token();
    } while (!token.empty());
    return ids;
  }

  State state_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(ListJobsTest, WhoAsksForNoPageGetsAllInTheOrderOfSubmission) {
  for (const char* id : {"z", "m", "a", "k"}) Submit(id);
  const ListJobsResponse all = List(0);
  EXPECT_THAT(Ids(all), ElementsAre("z", "m", "a", "k"));
  EXPECT_EQ(all.next_page_token(), "");
  EXPECT_THAT(all.jobs(3).reason(), HasSubstr("no node is connected"));
}

TEST_F(ListJobsTest, PagesTogetherAreTheWhole) {
  for (const char* id : {"z", "m", "a", "k", "b"}) Submit(id);
  EXPECT_THAT(Ids(List(2)), ElementsAre("z", "m"));
  for (int size = 1; size <= 6; ++size) {
    EXPECT_THAT(All(size), ElementsAre("z", "m", "a", "k", "b")) << size;
  }
  EXPECT_EQ(List(5).next_page_token(), "") << "there is no further page";
  EXPECT_THAT(List(2, List(2).next_page_token()).jobs(0).reason(),
              HasSubstr("no node is connected"));
}

TEST_F(ListJobsTest, WhatChangesBetweenTwoPagesMakesNoJobComeTwiceOrBeLeftOut) {
  for (const char* id : {"a", "b", "c", "d"}) Submit(id);
  const std::string token = List(2).next_page_token();
  Cancel("b");
  Cancel("c");
  Submit("e");
  EXPECT_THAT(Ids(List(9, token)), ElementsAre("d", "e"));
  EXPECT_THAT(Ids(List(9, token, /*ended=*/true)), ElementsAre("c", "d", "e"));
}

TEST_F(ListJobsTest, APageOfLargeJobsHasFewerOfThem) {
  for (const char* id : {"a", "b", "c", "d", "e"}) {
    Submit(id);
    state_.jobs.at(id).run_dir = std::string(kMostPageBytes / 3, 'x');
  }
  EXPECT_THAT(Ids(List(4)), ElementsAre("a", "b", "c"));
  EXPECT_THAT(All(4), ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_EQ(List(0).jobs_size(), 5);
}

TEST_F(ListJobsTest, ThereMayBeNone) {
  EXPECT_THAT(All(3), IsEmpty());
  Submit("a");
  Cancel("a");
  EXPECT_THAT(All(3), IsEmpty());
  EXPECT_THAT(All(3, /*ended=*/true), ElementsAre("a"));
}

TEST_F(ListJobsTest, ATokenThatIsNoneIsRefused) {
  ListJobsRequest request;
  request.set_page_size(1);
  request.set_page_token("next, please");
  EXPECT_EQ(ListJobs(state_, request, now_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::coordinator
