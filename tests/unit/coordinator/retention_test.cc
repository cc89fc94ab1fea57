// SPDX-License-Identifier: Apache-2.0
// What is forgotten of jobs that have ended.
#include "coordinator/core/retention.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/core/core.h"
#include "gtest/gtest.h"

namespace lockstep::coordinator {
namespace {

// `launcher submit --array --wait` asks for one after the other, the first of which may be slow.
TEST(RetentionTest, AnArrayIsKeptUntilAllOfItHaveEndedForAWhile) {
  State state;
  state.options.keep_ended = 0;
  absl::Time now = absl::UnixEpoch();
  const auto submit = [&](const std::string& id, int index, const std::string& array) {
    SubmitJobRequest request;
    request.mutable_spec()->set_name("job");
    request.mutable_spec()->mutable_resources()->set_nodes(1);
    request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
    request.mutable_spec()->mutable_train();
    if (index >= 0) request.mutable_array()->set_index(index);
    if (!array.empty()) request.mutable_array()->set_id(array);
    EXPECT_TRUE(Step(state, Submitted{id, request}, now).reply.ok());
  };
  const auto end = [&](const std::string& id) {
    Step(state, CancelRequested{id, true, {}}, now);
    EXPECT_TRUE(state.jobs.at(id).final());
  };
  const auto wait = [&](absl::Duration duration) { Step(state, Tick{}, now += duration); };
  submit("a0", 0, "");
  submit("a1", 1, "a0");
  submit("a2", 2, "a0");
  submit("alone", -1, "");
  for (const char* id : {"a1", "alone"}) end(id);
  wait(absl::Minutes(6));
  EXPECT_EQ(state.jobs.count("alone"), 0u);
  EXPECT_EQ(state.jobs.count("a1"), 1u) << "the others of its array have not ended";
  end("a2");
  end("a0");
  wait(absl::Minutes(4));
  EXPECT_EQ(state.jobs.size(), 3u);
  wait(absl::Minutes(2));
  EXPECT_TRUE(state.jobs.empty());
}

}  // namespace
}  // namespace lockstep::coordinator
