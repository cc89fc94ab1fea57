// SPDX-License-Identifier: Apache-2.0
// Calls that nobody answers.
#include "coordinator/client/client.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/thread.h"
#include "gtest/gtest.h"

namespace lockstep::coordinator {
namespace {

TEST(ClientTest, CallsThatAreStoppedEndAtOnce) {
  ClientOptions options;
  options.address = absl::StrCat("unix:", testing::TempDir(), "/nobody");
  const auto client = Client::Create(options);
  ListJobsRequest request;
  request.set_page_size(1);
  absl::Status waited;
  Thread waits("waits", [&] { waited = client->ListJobs(request, absl::Minutes(1)).status(); });
  client->StopCalls();
  waits.Join();
  EXPECT_TRUE(absl::IsCancelled(waited)) << waited;
  const absl::Status late = client->ListJobs(request, absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsCancelled(late)) << late;
}

}  // namespace
}  // namespace lockstep::coordinator
