// SPDX-License-Identifier: Apache-2.0
// What the verbs that run in the worker program say when they fail.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/commands/offline.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(OfflineErrorsTest, AModelsTextCommandsNoTerminal) {
  std::string folder = testing::TempDir() + "model-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/config.json")
      << R"({"format":"lockstep","schema":1,"model":{"mlp":{"hidden":[4]}},"classes":2,)"
      << R"("fields":[{"name":"x","type":"float32","shape":[3]},)"
      << R"({"name":"labels","type":"int32","shape":[],"limit":2}],"precision":"\u001b[2Jx"})";
  OfflineRequest eval, predict, generate;
  eval.mutable_eval()->set_model(folder);
  predict.mutable_predict()->set_model(folder);
  generate.mutable_generate()->set_model(folder);
  for (const OfflineRequest& request : {eval, predict, generate}) {
    testing::internal::CaptureStderr();
    EXPECT_NE(RunOffline(request), 0);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr("\\x1b[2Jx"));
    EXPECT_THAT(said, Not(HasSubstr("\x1b")));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::worker
