// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/ship_workdir.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "absl/synchronization/notification.h"
#include "common/random_hex.h"
#include "proto/package.grpc.pb.h"

namespace lockstep::launcher {
namespace {

// A coordinator that takes or gives the first piece of a package and no more, until the test is
// over.
class StuckPackages : public Packages::Service {
 public:
  StuckPackages() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(reached_.address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~StuckPackages() override {
    over_.Notify();
    server_->Shutdown();
  }
  grpc::Status HasPackage(grpc::ServerContext*, const HasPackageRequest*,
                          HasPackageResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status PutPackage(grpc::ServerContext* context, grpc::ServerReader<PackagePiece>* reader,
                          PutPackageResponse*) override {
    PackagePiece piece;
    EXPECT_TRUE(reader->Read(&piece));
    EXPECT_FALSE(piece.data().empty());
    return Stay(*context);
  }
  grpc::Status GetPackage(grpc::ServerContext* context, const GetPackageRequest*,
                          grpc::ServerWriter<PackagePiece>* writer) override {
    PackagePiece piece;
    piece.set_data("more is to come");
    EXPECT_TRUE(writer->Write(piece));
    return Stay(*context);
  }
  const coordinator::ClientOptions& reached() const { return reached_; }

  std::function<void()> in_the_middle = [] {};

 private:
  grpc::Status Stay(const grpc::ServerContext& context) {
    // A transfer that moves may take as long as it does.
    EXPECT_EQ(context.deadline(), std::chrono::system_clock::time_point::max());
    in_the_middle();
    over_.WaitForNotification();
    return grpc::Status::OK;
  }

  coordinator::ClientOptions reached_ = {.address = "unix-abstract:lockstep-ship-" + RandomHex(8)};
  absl::Notification over_;
  std::unique_ptr<grpc::Server> server_;
};

// A job with a workdir of so many bytes, which no packing makes fewer.
class ShipWorkdirTest : public testing::Test {
 protected:
  ShipWorkdirTest() : folder_(testing::TempDir() + "/ship-" + RandomHex(8)) {
    std::filesystem::create_directories(folder_ + "/code");
    request_.set_submit_dir(folder_);
    request_.mutable_spec()->set_workdir("code");
  }
  ~ShipWorkdirTest() override { std::filesystem::remove_all(folder_); }

  void Write(size_t bytes) {
    std::mt19937 random(1);
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>(random());
    std::ofstream(folder_ + "/code/data", std::ios::binary) << text;
  }

  const std::string folder_;
  SubmitJobRequest request_;
};

// A coordinator that nobody hears of is waited for, unless the wait is ended.
TEST_F(ShipWorkdirTest, AStopEndsTheSendingAtOnce) {
  Write(10);
  coordinator::ClientOptions nowhere;
  nowhere.address = "unix-abstract:lockstep-ship-" + RandomHex(8);
  WorkdirSender sender;
  const absl::Status sent = sender.Send(nowhere, "", &request_, [&](const std::string& id) {
    EXPECT_FALSE(id.empty());
    sender.Stop();
    return absl::OkStatus();
  });
  EXPECT_EQ(sent.code(), absl::StatusCode::kCancelled) << sent;
  EXPECT_EQ(request_.spec().workdir(), "code");
}

TEST_F(ShipWorkdirTest, AStopEndsThePackingToo) {
  Write(size_t{1} << 20);
  WorkdirSender sender;
  sender.Stop();
  const absl::Status sent = sender.Send({}, "", &request_, [](const std::string&) {
    ADD_FAILURE() << "it is packed";
    return absl::OkStatus();
  });
  EXPECT_EQ(sent.code(), absl::StatusCode::kCancelled) << sent;
}

// More bytes than lie between the two.
TEST_F(ShipWorkdirTest, AStopEndsTheSendingInTheMiddle) {
  Write(size_t{16} << 20);
  StuckPackages stuck;
  WorkdirSender sender;
  stuck.in_the_middle = [&] { sender.Stop(); };
  const absl::Status sent = sender.Send(stuck.reached(), "", &request_,
                                        [](const std::string&) { return absl::OkStatus(); });
  EXPECT_EQ(sent.code(), absl::StatusCode::kCancelled) << sent;
  EXPECT_EQ(request_.spec().workdir(), "code");
}

TEST_F(ShipWorkdirTest, ATransferEndsWhenNothingMoves) {
  StuckPackages stuck;
  const auto client = coordinator::PackagesClient::Create(stuck.reached());
  const std::string bytes(size_t{16} << 20, 'x');
  EXPECT_EQ(client->Put("id", bytes, absl::Milliseconds(500)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  const absl::Status got = client->Get("id", absl::Milliseconds(500)).status();
  EXPECT_EQ(got.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(got.message().find("nothing moved for long"), std::string::npos) << got;
}

TEST_F(ShipWorkdirTest, ATransferEndsWhenNobodyIsReached) {
  coordinator::ClientOptions nowhere;
  nowhere.address = "unix-abstract:lockstep-ship-" + RandomHex(8);
  const auto client = coordinator::PackagesClient::Create(nowhere);
  const absl::Status got = client->Get("id", absl::Milliseconds(200)).status();
  EXPECT_EQ(got.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(got.message().find("no coordinator answers"), std::string::npos) << got;
  EXPECT_EQ(client->Put("id", "x", absl::Milliseconds(200)).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lockstep::launcher
