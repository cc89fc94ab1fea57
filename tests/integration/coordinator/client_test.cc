// SPDX-License-Identifier: Apache-2.0
// Calls that nobody answers, or that break off.
#include "coordinator/client/client.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/already_so.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/thread.h"
#include "coordinator/client/access.h"
#include "coordinator/client/certificates.h"
#include "coordinator/client/grpc_status.h"
#include "coordinator/client/token.h"
#include "gtest/gtest.h"
#include "proto/access.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"

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

// Answers each call with the next of these.
class Script {
 public:
  std::vector<absl::Status> answers;  // not changed while a call is made
  size_t calls = 0;

 protected:
  grpc::Status Next() { return ToGrpc(answers.at(calls++)); }
};

class ScriptedAccess : public Access::Service, public Script {
 public:
  grpc::Status CreateToken(grpc::ServerContext*, const CreateTokenRequest*,
                           CreateTokenResponse*) override {
    return Next();
  }
  grpc::Status RevokeToken(grpc::ServerContext*, const RevokeTokenRequest*,
                           RevokeTokenResponse*) override {
    return Next();
  }
};

class ScriptedCoordinator : public Coordinator::Service, public Script {
 public:
  grpc::Status GetUsage(grpc::ServerContext* context, const GetUsageRequest*,
                        GetUsageResponse*) override {
    given = context->deadline() - std::chrono::system_clock::now();
    return Next();
  }
  grpc::Status UndrainNode(grpc::ServerContext*, const UndrainNodeRequest*,
                           UndrainNodeResponse*) override {
    return Next();
  }
  grpc::Status HoldJob(grpc::ServerContext*, const HoldJobRequest*, HoldJobResponse*) override {
    return Next();
  }
  grpc::Status CancelJob(grpc::ServerContext*, const CancelJobRequest*,
                         CancelJobResponse*) override {
    return Next();
  }
  grpc::Status SubmitJob(grpc::ServerContext*, const SubmitJobRequest*,
                         SubmitJobResponse*) override {
    return Next();
  }
  std::chrono::nanoseconds given{};  // the time that the last call had
};

class RepeatedCallTest : public testing::Test {
 protected:
  RepeatedCallTest() : folder_(testing::TempDir() + "/client_XXXXXX") {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    options_.address = absl::StrCat("unix:", folder_, "/scripted");
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options_.address, grpc::InsecureServerCredentials());
    builder.RegisterService(&coordinator_);
    builder.RegisterService(&access_);
    server_ = builder.BuildAndStart();
  }
  ~RepeatedCallTest() override {
    server_->Shutdown();
    std::filesystem::remove_all(folder_);
  }
  absl::Status Undrain(const std::vector<absl::Status>& answers) {
    coordinator_.answers = answers;
    coordinator_.calls = 0;
    const auto response =
        Client::Create(options_)->UndrainNode(UndrainNodeRequest(), absl::Seconds(30));
    EXPECT_EQ(coordinator_.calls, answers.size());
    return response.status();
  }
  std::string folder_;
  ClientOptions options_;
  ScriptedCoordinator coordinator_;
  ScriptedAccess access_;
  std::unique_ptr<grpc::Server> server_;
};

// The coordinator ended before it answered, and carried it out all the same.
TEST_F(RepeatedCallTest, WhatIsAlreadySoAfterATryThatBrokeOffIsDone) {
  const absl::Status broken = absl::UnavailableError("Socket closed");
  const absl::Status so = AlreadySoError("node n is neither drained nor left out");
  EXPECT_TRUE(Undrain({broken, so}).ok());
  EXPECT_TRUE(Undrain({broken, broken, so}).ok());
  coordinator_.answers = {broken, so, broken, so};
  coordinator_.calls = 0;
  EXPECT_TRUE(Client::Create(options_)->HoldJob(HoldJobRequest(), absl::Seconds(30)).ok());
  EXPECT_TRUE(Client::Create(options_)->CancelJob(CancelJobRequest(), absl::Seconds(30)).ok());
}

TEST_F(RepeatedCallTest, OtherRefusalsStayThose) {
  const absl::Status broken = absl::UnavailableError("Socket closed");
  const absl::Status so = AlreadySoError("node n is neither drained nor left out");
  const absl::Status first = Undrain({so});
  EXPECT_TRUE(absl::IsFailedPrecondition(first)) << first;
  EXPECT_EQ(first.message(), so.message());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      Undrain({broken, absl::FailedPreconditionError("'h' is the host of 2 nodes")})));
  EXPECT_TRUE(absl::IsNotFound(Undrain({broken, absl::NotFoundError("there is no node n")})));
}

// Who submits again by hand has another request id, and the job a second time.
TEST_F(RepeatedCallTest, AJobThatMayHaveBeenAcceptedIsKnown) {
  const auto submit = [this] {
    return Client::Create(options_)->SubmitJob(SubmitJobRequest(), absl::Seconds(1)).status();
  };
  coordinator_.answers.assign(1000, absl::UnavailableError("Socket closed"));
  EXPECT_TRUE(IsUnanswered(submit()));
  options_.address += "-nobody";
  EXPECT_FALSE(IsUnanswered(submit()));
}

TEST_F(RepeatedCallTest, WhatTheCoordinatorSaysItselfComesFirst) {
  const auto undrain = [this](absl::string_view why) {
    coordinator_.answers.assign(1000, absl::UnavailableError(why));
    return Client::Create(options_)->UndrainNode(UndrainNodeRequest(), absl::Milliseconds(300));
  };
  EXPECT_EQ(undrain("Socket closed").status().message(),
            absl::StrCat("no coordinator answers at ", options_.address, " within 300ms"));
  EXPECT_EQ(undrain("the coordinator is starting").status().message(),
            absl::StrCat("the coordinator is starting; no other answer came from ",
                         options_.address, " within 300ms"));
}

// What the next coordinator has against it says nothing of the one that ended.
TEST_F(RepeatedCallTest, ARefusalAfterATryThatBrokeOffDoesNotSayThatItWasNotAccepted) {
  const auto submit = [this](const std::vector<absl::Status>& answers) {
    coordinator_.answers = answers;
    coordinator_.calls = 0;
    return Client::Create(options_)->SubmitJob(SubmitJobRequest(), absl::Seconds(30)).status();
  };
  const absl::Status broken = absl::UnavailableError("Socket closed");
  const absl::Status refused = absl::PermissionDeniedError("shown a wrong token");
  const absl::Status after = submit({broken, refused});
  EXPECT_TRUE(absl::IsPermissionDenied(after)) << after;
  EXPECT_TRUE(IsUnanswered(after));
  EXPECT_FALSE(IsUnanswered(submit({refused})));
  EXPECT_FALSE(IsUnanswered(submit({broken, absl::InvalidArgumentError("no such model")})));
}

// What writes to a slow etcd takes longer than it takes to see that nobody is there.
TEST_F(RepeatedCallTest, OneOfSeveralThatIsReachedHasTheWholeTime) {
  coordinator_.answers = {absl::OkStatus()};
  options_.address += absl::StrCat(",unix:", folder_, "/nobody");
  EXPECT_TRUE(Client::Create(options_)->GetUsage(GetUsageRequest(), absl::Seconds(100)).ok());
  EXPECT_GT(coordinator_.given, std::chrono::seconds(50));
}

TEST_F(RepeatedCallTest, ATokenIsRevokedOnceAndMadeOnce) {
  const absl::Status broken = absl::UnavailableError("Socket closed");
  const absl::Status gone = absl::NotFoundError("there is no token");
  const auto script = [this](const std::vector<absl::Status>& answers) {
    access_.answers = answers;
    access_.calls = 0;
  };
  const RevokeTokenRequest revoke;
  // Nobody can tell a token that the first try has revoked from one that never was.
  script({broken, gone});
  const absl::Status again = RevokeToken(options_, revoke, absl::Seconds(30)).status();
  EXPECT_TRUE(absl::IsNotFound(again) && IsUnanswered(again)) << again;
  EXPECT_EQ(again.message(),
            "the call broke off, and may have revoked the token; made again: there is no token");
  script({gone});
  const absl::Status none = RevokeToken(options_, revoke, absl::Seconds(30)).status();
  EXPECT_TRUE(absl::IsNotFound(none) && !IsUnanswered(none)) << none;
  EXPECT_EQ(none.message(), gone.message());
  // A refusal to serve is no try.
  script({absl::UnavailableError("the coordinator is starting"), absl::OkStatus()});
  EXPECT_TRUE(CreateToken(options_, CreateTokenRequest(), absl::Seconds(30)).ok());
  script({broken, absl::OkStatus()});
  const absl::Status made = CreateToken(options_, CreateTokenRequest(), absl::Seconds(30)).status();
  EXPECT_TRUE(absl::IsUnavailable(made) && IsUnanswered(made)) << made;
  EXPECT_EQ(made.message(), absl::StrCat("no coordinator answers at ", options_.address));
  EXPECT_EQ(access_.calls, 1u);
}

// Several coordinators, of which the tests say who speaks TLS.
class SeveralTest : public testing::Test {
 protected:
  SeveralTest() : authority_(*MakeAuthority(now_)) {
    const Certified own = *IssueServer(authority_, {"127.0.0.1"}, now_, absl::Hours(1));
    grpc::SslServerCredentialsOptions tls;
    tls.pem_key_cert_pairs.push_back({own.key, own.certificate});
    secure_ = Serve(grpc::SslServerCredentials(tls), secure_server_);
    plain_ = Serve(grpc::InsecureServerCredentials(), plain_server_);
    // Nobody else gets its port, and nobody answers there.
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(name);
    EXPECT_EQ(bind(bound_.get(), reinterpret_cast<const sockaddr*>(&name), size), 0);
    EXPECT_EQ(getsockname(bound_.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
    dead_ = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  }
  ~SeveralTest() override {
    secure_server_->Shutdown();
    plain_server_->Shutdown();
  }
  std::string Serve(const std::shared_ptr<grpc::ServerCredentials>& credentials,
                    std::unique_ptr<grpc::Server>& server) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterService(&coordinator_);
    server = builder.BuildAndStart();
    return absl::StrCat("127.0.0.1:", port);
  }
  absl::Status Ask(const std::string& addresses, const Certified& authority,
                   absl::Duration timeout = absl::Seconds(1)) {
    coordinator_.answers = {absl::NotFoundError("there is no node n")};
    coordinator_.calls = 0;
    const std::string token = *TokenOf({"secret", authority.certificate});
    return Client::Create({addresses, token})->UndrainNode(UndrainNodeRequest(), timeout).status();
  }
  const absl::Time now_ = Clock::Real()->Now();
  const Certified authority_;
  ScriptedCoordinator coordinator_;
  std::unique_ptr<grpc::Server> secure_server_, plain_server_;
  const UniqueFd bound_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string secure_, plain_, dead_;
};

TEST_F(SeveralTest, WhatIsWrongWithOneOfThemIsSaidWhenNobodyServes) {
  const absl::Status none = Ask(absl::StrCat(dead_, ",", plain_), authority_);
  EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;
  EXPECT_TRUE(absl::StrContains(none.message(), absl::StrCat(plain_, " does not speak TLS")))
      << none;
}

TEST_F(SeveralTest, AnotherOneMayServeAllTheSame) {
  const absl::Status served = Ask(absl::StrCat(plain_, ",", secure_), authority_);
  EXPECT_TRUE(absl::IsNotFound(served)) << served;
}

TEST_F(SeveralTest, WhatIsWrongWithAllOfThemIsSaidAtOnce) {
  const absl::Status refused =
      Ask(absl::StrCat(secure_, ",", plain_), *MakeAuthority(now_), absl::InfiniteDuration());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "of another cluster than the token")) << refused;
}

TEST(MayHaveArrivedTest, OfWhatNobodyServed) {
  const auto unavailable = [](const std::string& why) {
    return MayHaveArrived(grpc::Status(grpc::StatusCode::UNAVAILABLE, why), true);
  };
  EXPECT_TRUE(unavailable("Socket closed"));
  EXPECT_TRUE(unavailable("the coordinator ends: its disk is broken"));
  EXPECT_FALSE(unavailable("the coordinator is starting"));
  EXPECT_FALSE(unavailable("failed to connect to all addresses; last error: refused"));
  EXPECT_FALSE(MayHaveArrived(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job"), true));
  EXPECT_TRUE(MayHaveArrived(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, ""), true));
  EXPECT_FALSE(MayHaveArrived(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, ""), false));
}

}  // namespace
}  // namespace lockstep::coordinator
