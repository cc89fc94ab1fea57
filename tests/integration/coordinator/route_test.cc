// SPDX-License-Identifier: Apache-2.0
// The way to the leader, where it takes long to answer.
#include "coordinator/client/route.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/access.grpc.pb.h"

namespace lockstep::coordinator {
namespace {

// Leads, at the end of a way on which an answer takes so long: who gives it less has none.
class FarLeader : public Access::Service {
 public:
  // What every role may call: what it may not would be in the audit.
  grpc::Status WhoAmI(grpc::ServerContext* context, const WhoAmIRequest*, Requester*) override {
    ++calls;
    const auto given = context->deadline() - std::chrono::system_clock::now();
    if (given < std::chrono::milliseconds(1500)) {
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "too little time"};
    }
    return {grpc::StatusCode::PERMISSION_DENIED, "who are you?"};
  }
  std::atomic<int> calls = 0;
};

class RouteTest : public testing::Test {
 protected:
  RouteTest() : folder_(testing::TempDir() + "/route_XXXXXX") {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", folder_, "/leader"),
                             grpc::InsecureServerCredentials());
    builder.RegisterService(&leader_);
    server_ = builder.BuildAndStart();
  }
  ~RouteTest() override {
    server_->Shutdown();
    std::filesystem::remove_all(folder_);
  }
  std::string folder_;
  FarLeader leader_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(RouteTest, ALeaderThatAnswersLateIsFoundAmongOthers) {
  ClientOptions options;
  options.address = absl::StrCat("unix:", folder_, "/leader,unix:", folder_, "/nobody");
  Route route(options);
  const std::shared_ptr<grpc::Channel> channel = route.ToLeader(absl::Seconds(100));
  EXPECT_GE(leader_.calls, 2);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(100));
  Requester who;
  const grpc::Status said = Access::NewStub(channel)->WhoAmI(&context, WhoAmIRequest(), &who);
  EXPECT_EQ(said.error_code(), grpc::StatusCode::PERMISSION_DENIED) << said.error_message();
}

}  // namespace
}  // namespace lockstep::coordinator
