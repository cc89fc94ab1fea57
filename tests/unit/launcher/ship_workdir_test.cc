// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/ship_workdir.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/random_hex.h"

namespace lockstep::launcher {
namespace {

// A coordinator that nobody hears of is waited for, for minutes, unless the wait is ended.
TEST(ShipWorkdir, AStopEndsTheSendingAtOnce) {
  const std::string folder = testing::TempDir() + "/ship-" + RandomHex(8);
  std::filesystem::create_directories(folder + "/code");
  std::ofstream(folder + "/code/train.py") << "print()\n";
  SubmitJobRequest request;
  request.set_submit_dir(folder);
  request.mutable_spec()->set_workdir("code");
  coordinator::ClientOptions nowhere;
  nowhere.address = "unix-abstract:lockstep-ship-" + RandomHex(8);
  WorkdirSender sender;
  const absl::Status sent = sender.Send(nowhere, &request, [&](const std::string& id) {
    EXPECT_FALSE(id.empty());
    sender.Stop();
    return absl::OkStatus();
  });
  EXPECT_EQ(sent.code(), absl::StatusCode::kCancelled) << sent;
  EXPECT_EQ(request.spec().workdir(), "code");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::launcher
