// SPDX-License-Identifier: Apache-2.0
// Files that go from an agent through a real server to who asks for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/random_hex.h"
#include "coordinator/client/files.h"
#include "coordinator/service/server.h"
#include "tests/integration/coordinator/test_peers.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "a-token";

class FileExchangeTest : public ::testing::Test {
 protected:
  explicit FileExchangeTest(absl::Duration patience = ServerOptions().piece_patience,
                            absl::Duration share = ServerOptions().transfer_share) {
    ServerOptions options;
    options.piece_patience = patience;
    options.transfer_share = share;
    options.listen = "unix-abstract:lockstep-files-" + RandomHex(8);
    options.token = kToken;
    server_ = *Server::Start(options, Clock::Real(), store_.get());
    agent_ = std::make_unique<FakeAgent>(server_->address(), kToken);
    SubmitJobRequest request;
    request.set_submit_dir("/home/user");
    request.mutable_spec()->set_name("mlp");
    request.mutable_spec()->mutable_resources()->set_nodes(1);
    request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
    request.mutable_spec()->mutable_train()->set_shards(1);
    job_ = Client::Create(Me())->SubmitJob(request, kPatience)->job_id();
    agent_->WaitForWorkers(1);
    client_ = FilesClient::Create(Me());
  }
  ~FileExchangeTest() override {
    if (fetching_.joinable()) fetching_.join();
  }

  ClientOptions Me() const { return {server_->address(), kToken}; }
  // Fetches on a thread; what comes is in names_ and fetched_.
  void Fetch() {
    fetching_ = std::thread([this] {
      FetchRequest request;
      request.set_job_id(job_);
      request.set_node_id("n1");
      request.set_logs(true);
      fetched_ = client_->Fetch(request, [this](const FilePiece& piece) {
        EXPECT_EQ(piece.ticket(), "");
        if (!piece.end()) names_.push_back(piece.name());
        pieces_ = pieces_ + 1;
        return absl::OkStatus();
      });
    });
  }
  absl::Status Fetched() {
    fetching_.join();
    return fetched_;
  }
  // Returns what the agent was asked for.
  SendFiles Asked() {
    const SendFiles asked =
        agent_->inbox.WaitFor([](const AgentCommand& c) { return c.has_send_files(); })
            .send_files();
    agent_->inbox.Clear();
    return asked;
  }
  static FilePiece Piece(const std::string& ticket, const std::string& name) {
    FilePiece piece;
    piece.set_ticket(ticket);
    piece.set_name(name);
    return piece;
  }
  static FilePiece End() {
    FilePiece piece;
    piece.set_end(true);
    return piece;
  }

  std::unique_ptr<Store> store_ = MakeMemoryStore();
  std::unique_ptr<Server> server_;
  std::unique_ptr<FakeAgent> agent_;
  std::unique_ptr<FilesClient> client_;
  std::string job_;
  std::thread fetching_;
  absl::Status fetched_;
  std::vector<std::string> names_;
  std::atomic<int> pieces_{0};
};

TEST_F(FileExchangeTest, PiecesComeInOrderToWhoHasTheTicket) {
  FindFilesRequest find;
  find.set_job_id("mlp");
  const auto found = client_->FindFiles(find, kPatience);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->nodes_size(), 1);
  EXPECT_EQ(found->nodes(0).node_id(), "n1");
  Fetch();
  const SendFiles asked = Asked();
  EXPECT_EQ(asked.job_id(), job_);
  EXPECT_EQ(asked.submit_dir(), "/home/user");
  EXPECT_EQ(asked.run_dir(), found->run_dir());
  EXPECT_TRUE(asked.logs());
  EXPECT_FALSE(asked.all() || asked.model());
  {
    const auto guessed = FileStream::Open(Me());
    guessed->Write(Piece("guessed", "evil"));
    EXPECT_EQ(guessed->Finish().code(), absl::StatusCode::kPermissionDenied);
    const auto stranger = FileStream::Open({server_->address(), "another token"});
    stranger->Write(Piece(asked.ticket(), "evil"));
    EXPECT_EQ(stranger->Finish().code(), absl::StatusCode::kUnauthenticated);
  }
  const auto stream = FileStream::Open(Me());
  std::vector<std::string> sent;
  for (int i = 0; i < 100; ++i) {
    sent.push_back(absl::StrCat("logs/", i));
    ASSERT_TRUE(stream->Write(Piece(i == 0 ? asked.ticket() : "", sent.back())));
  }
  // Of two streams that show it, the one that is read first has it.
  while (pieces_ == 0) std::this_thread::yield();
  {
    const auto second = FileStream::Open(Me());
    second->Write(Piece(asked.ticket(), "evil"));
    EXPECT_EQ(second->Finish().code(), absl::StatusCode::kPermissionDenied) << "it is good once";
  }
  ASSERT_TRUE(stream->Write(End()));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(Fetched().ok()) << fetched_;
  EXPECT_EQ(names_, sent);
}

TEST_F(FileExchangeTest, WhatTheNodeCannotGiveIsSaid) {
  Fetch();
  const auto stream = FileStream::Open(Me());
  FilePiece piece = Piece(Asked().ticket(), "");
  piece.set_error(static_cast<int32_t>(absl::StatusCode::kNotFound));
  piece.set_error_text("there is no such folder");
  stream->Write(piece);
  stream->Finish().IgnoreError();
  EXPECT_EQ(Fetched().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fetched_.message(), "there is no such folder");
  FetchRequest request;
  request.set_job_id(job_);
  request.set_node_id("n2");
  EXPECT_EQ(client_->Fetch(request, nullptr).code(), absl::StatusCode::kNotFound);
}

TEST_F(FileExchangeTest, AnAgentThatBreaksOffIsNoEnd) {
  Fetch();
  {
    const auto stream = FileStream::Open(Me());
    ASSERT_TRUE(stream->Write(Piece(Asked().ticket(), "logs/0.log")));
    // A cancellation may overtake the piece, and the ticket that joins the two streams with it.
    while (pieces_ == 0) std::this_thread::yield();
    stream->Cancel();
    stream->Finish().IgnoreError();
  }
  EXPECT_EQ(Fetched().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(fetched_.message()), HasSubstr("broke off"));
}

TEST_F(FileExchangeTest, WhoStopsFetchingStopsTheAgent) {
  Fetch();
  const auto stream = FileStream::Open(Me());
  FilePiece piece = Piece(Asked().ticket(), "logs/0.log");
  piece.set_data(std::string(size_t{256} << 10, 'x'));
  ASSERT_TRUE(stream->Write(piece));
  while (pieces_ == 0) std::this_thread::yield();
  client_->Stop();
  EXPECT_EQ(Fetched().code(), absl::StatusCode::kCancelled);
  piece.clear_ticket();
  while (stream->Write(piece)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
}

// Whose transfers have had their share of time at once.
class NoShareTest : public FileExchangeTest {
 protected:
  NoShareTest() : FileExchangeTest(ServerOptions().piece_patience, absl::ZeroDuration()) {}
};

TEST_F(NoShareTest, WhoHasHadItsShareGivesWayWhenAnotherAsks) {
  Fetch();
  const std::string ticket = Asked().ticket();
  const auto others = FilesClient::Create(Me());
  FetchRequest request;
  request.set_job_id(job_);
  request.set_node_id("n1");
  const auto take = [](const FilePiece&) { return absl::OkStatus(); };
  std::thread second([&] { EXPECT_TRUE(others->Fetch(request, take).ok()); });
  const std::string other_ticket = Asked().ticket();
  const absl::Status third = FilesClient::Create(Me())->Fetch(request, take);
  EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.message()), HasSubstr("carries files for 2 others"));
  const auto stream = FileStream::Open(Me());
  EXPECT_TRUE(stream->Write(Piece(ticket, "logs/0.log")));
  EXPECT_EQ(Fetched().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(fetched_.message()), HasSubstr("others wait"));
  const auto other_stream = FileStream::Open(Me());
  FilePiece end = End();
  end.set_ticket(other_ticket);
  EXPECT_TRUE(other_stream->Write(end));
  EXPECT_TRUE(other_stream->Finish().ok());
  second.join();
}

// With a patience that a test has, too.
class StandstillTest : public FileExchangeTest {
 protected:
  StandstillTest() : FileExchangeTest(absl::Milliseconds(300)) {}
};

TEST_F(StandstillTest, WhoTakesNothingIsSentAway) {
  absl::Notification taken, released;
  fetching_ = std::thread([&] {
    FetchRequest request;
    request.set_job_id(job_);
    request.set_node_id("n1");
    fetched_ = client_->Fetch(request, [&](const FilePiece&) {
      if (!taken.HasBeenNotified()) taken.Notify();
      released.WaitForNotification();
      return absl::OkStatus();
    });
  });
  FilePiece piece = Piece(Asked().ticket(), "logs/0.log");
  piece.set_data(std::string(size_t{1} << 20, 'x'));
  const auto stream = FileStream::Open(Me());
  while (stream->Write(piece)) piece.clear_ticket();
  EXPECT_FALSE(stream->Finish().ok());
  released.Notify();
  EXPECT_EQ(Fetched().code(), absl::StatusCode::kUnavailable) << fetched_;
  EXPECT_TRUE(taken.HasBeenNotified());
  EXPECT_THAT(std::string(fetched_.message()), HasSubstr("was not taken for long"));
}

}  // namespace
}  // namespace lockstep::coordinator
