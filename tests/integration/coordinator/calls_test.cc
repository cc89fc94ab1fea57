// SPDX-License-Identifier: Apache-2.0
// Every call of every service, made with each role over the network: the table of
// coordinator/core/access.h is what the server does.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/client/access.h"
#include "coordinator/client/channel.h"
#include "coordinator/core/access.h"
#include "coordinator/service/server.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/files.pb.h"
#include "proto/package.pb.h"
#include "tests/integration/coordinator/test_peers.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CallsTest : public ::testing::Test {
 protected:
  CallsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.token = std::string(64, 'c');
    options.audit = folder_ + "/audit.jsonl";
    auto server = Server::Start(options, Clock::Real(), store_.get());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~CallsTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  ClientOptions As(const std::string& token) const { return {server_->address(), token}; }
  std::string TokenFor(const std::string& user, Role role) {
    CreateTokenRequest request;
    request.set_user(user);
    request.set_role(role);
    const auto made = CreateToken(As(std::string(64, 'c')), request, kPatience);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? made->token() : "";
  }
  // Calls `method` ("/lockstep.Coordinator/ListJobs") with an empty message. Streams are cancelled
  // as soon as the server has let them in.
  grpc::Status Call(const std::string& method, bool streams, const std::string& token) {
    const ClientOptions options = As(token);
    const auto channel = MakeChannel(options);
    grpc::ClientContext context;
    ShowToken(options, &context);
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const grpc::internal::RpcMethod rpc(method.c_str(),
                                        streams ? grpc::internal::RpcMethod::BIDI_STREAMING
                                                : grpc::internal::RpcMethod::NORMAL_RPC);
    if (!streams) {
      ListJobsRequest nothing;
      ListJobsResponse response;
      return grpc::internal::BlockingUnaryCall<ListJobsRequest, ListJobsResponse>(
          channel.get(), rpc, &context, nothing, &response);
    }
    const std::unique_ptr<grpc::ClientReaderWriter<ListJobsRequest, ListJobsResponse>> stream(
        grpc::internal::ClientReaderWriterFactory<ListJobsRequest, ListJobsResponse>::Create(
            channel.get(), rpc, &context));
    stream->Write(ListJobsRequest());
    stream->WritesDone();
    ListJobsResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }

  std::string folder_;
  std::unique_ptr<Store> store_ = MakeMemoryStore();
  std::unique_ptr<Server> server_;
};

TEST_F(CallsTest, EveryRoleMayWhatTheTableSays) {
  const std::pair<Role, std::string> callers[] = {
      {ROLE_SUBMIT, TokenFor("ann", ROLE_SUBMIT)},
      {ROLE_OPERATE, TokenFor("olga", ROLE_OPERATE)},
      {ROLE_ADMIN, TokenFor("adam", ROLE_ADMIN)},
      {ROLE_JOIN, TokenFor("node7", ROLE_JOIN)},
  };
  const google::protobuf::ServiceDescriptor* const services[] = {
      SubmitJobRequest::descriptor()->file()->service(0),
      FindFilesRequest::descriptor()->file()->service(0),
      HasPackageRequest::descriptor()->file()->service(0),
      TokenInfo::descriptor()->file()->service(0)};
  int calls = 0;
  for (const auto* service : services) {
    for (int i = 0; i < service->method_count(); ++i) {
      const auto& method = *service->method(i);
      const std::string call = absl::StrCat(service->name(), "/", method.name());
      const std::string path = absl::StrCat("/lockstep.", call);
      const bool streams = method.client_streaming() || method.server_streaming();
      for (const char* wrong : {"", "guess"}) {
        EXPECT_EQ(Call(path, streams, wrong).error_code(), grpc::StatusCode::UNAUTHENTICATED)
            << call << " with '" << wrong << "'";
      }
      for (const auto& [role, token] : callers) {
        const grpc::Status status = Call(path, streams, token);
        const bool refused = status.error_code() == grpc::StatusCode::PERMISSION_DENIED &&
                             status.error_message().find("the role ") == 0;
        EXPECT_EQ(!refused, ReachOf(call, role) != Reach::kNone)
            << call << " as " << RoleName(role) << ": " << status.error_message();
      }
      ++calls;
    }
  }
  EXPECT_EQ(calls, static_cast<int>(AccessTable().size()));
}

TEST_F(CallsTest, UsersHaveTheirOwnJobs) {
  const std::string ann = TokenFor("ann", ROLE_SUBMIT), bob = TokenFor("bob", ROLE_SUBMIT);
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  request.mutable_spec()->mutable_train()->set_shards(1);
  (*request.mutable_spec()->mutable_secrets())["KEY"] = "the-secret-of-ann";
  request.set_user("bob");  // what a client says of itself is not read
  request.mutable_by()->set_role(ROLE_ADMIN);
  const auto submitted = Client::Create(As(ann))->SubmitJob(request, kPatience);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  DescribeJobRequest describe;
  describe.set_job_id(submitted->job_id());
  const auto described = Client::Create(As(ann))->DescribeJob(describe, kPatience);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->status().user(), "ann");
  const auto refused = Client::Create(As(bob))->DescribeJob(describe, kPatience);
  EXPECT_TRUE(absl::IsPermissionDenied(refused.status())) << refused.status();
  CancelJobRequest cancel;
  cancel.set_job_id("mlp");
  cancel.mutable_by()->set_role(ROLE_ADMIN);
  EXPECT_TRUE(
      absl::IsPermissionDenied(Client::Create(As(bob))->CancelJob(cancel, kPatience).status()));
  EXPECT_TRUE(Client::Create(As(ann))->CancelJob(cancel, kPatience).ok());
  server_.reset();  // writes the audit's last lines
  std::ifstream file(folder_ + "/audit.jsonl");
  const std::string audit((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(audit, HasSubstr(R"("what":"submit")"));
  EXPECT_THAT(audit, HasSubstr(R"("outcome":"permission_denied")"));
  EXPECT_THAT(audit, Not(HasSubstr("the-secret-of-ann")));
  EXPECT_THAT(audit, Not(HasSubstr(ann)));
  struct stat info = {};
  ASSERT_EQ(::stat((folder_ + "/audit.jsonl").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(CallsTest, WhatChangesWhoGetsInIsInTheAuditBeforeItIsDone) {
  const std::string cluster(64, 'c');
  CreateTokenRequest create;
  create.set_user("ann");
  create.set_role(ROLE_SUBMIT);
  const auto made = CreateToken(As(cluster), create, kPatience);
  ASSERT_TRUE(made.ok()) << made.status();
  RevokeTokenRequest revoke;
  revoke.set_id(made->info().id());
  EXPECT_TRUE(RevokeToken(As(cluster), revoke, kPatience).ok());
  EXPECT_TRUE(absl::IsNotFound(RevokeToken(As(cluster), revoke, kPatience).status()));
  server_.reset();  // writes the audit's last lines
  std::ifstream file(folder_ + "/audit.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  const std::pair<std::string, std::string> expected[] = {
      {"create_token", "asked"},
      {"create_token", "ok"},
      {"revoke_token", "asked"},
      {"revoke_token", "ok"},
      {"Access/RevokeToken", "not_found"}};  // of one that is none of the caller's nothing can come
  ASSERT_EQ(lines.size(), std::size(expected));
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto& [what, outcome] = expected[i];
    EXPECT_THAT(lines[i], HasSubstr(absl::StrCat(R"("what":")", what, R"(","on":")", revoke.id())));
    EXPECT_THAT(lines[i], HasSubstr(absl::StrCat(R"("outcome":")", outcome, "\"")));
  }
}

TEST_F(CallsTest, TheAuditSaysWhichNodesHaveJoinedAndWhichWereRefused) {
  FakeAgent agent(server_->address(), TokenFor("node7", ROLE_JOIN));
  agent.WaitForWorkers(0);
  FakeAgent other(server_->address(), TokenFor("node8", ROLE_JOIN));
  const AgentCommand refusal =
      other.inbox.WaitFor([](const AgentCommand& command) { return command.has_rejected(); });
  EXPECT_EQ(refusal.rejected().kind(), Rejected::OTHER_OWNER);
  server_.reset();  // writes the audit's last lines
  std::ifstream file(folder_ + "/audit.jsonl");
  std::vector<std::string> joins;
  for (std::string line; std::getline(file, line);) {
    if (absl::StrContains(line, R"("what":"join")")) joins.push_back(line);
  }
  ASSERT_GE(joins.size(), 2u);
  EXPECT_THAT(joins[0], HasSubstr(R"("user":"node7")"));
  EXPECT_THAT(joins[0], HasSubstr(R"("outcome":"ok")"));
  EXPECT_THAT(joins[1], HasSubstr(R"("user":"node8")"));
  EXPECT_THAT(joins[1], HasSubstr(R"("outcome":"permission_denied")"));
}

TEST_F(CallsTest, AWorkersTokenIsGoodForItsOwnStreamAlone) {
  FakeAgent agent(server_->address(), TokenFor("node7", ROLE_JOIN));
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(2);
  request.mutable_spec()->mutable_train()->set_shards(2);
  const std::string ann = TokenFor("ann", ROLE_SUBMIT);
  ASSERT_TRUE(Client::Create(As(ann))->SubmitJob(request, kPatience).ok());
  const DesiredWorkers desired = agent.WaitForWorkers(2);
  ASSERT_EQ(desired.workers_size(), 2);
  const std::string own = desired.workers(0).token();
  EXPECT_EQ(Call("/lockstep.Coordinator/ListJobs", false, own).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Call("/lockstep.Coordinator/AgentSession", true, own).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Call("/lockstep.Coordinator/WorkerSession", true, ann).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  // Another's name with one's own token.
  WorkerAssignment posing = desired.workers(1);
  posing.set_token(own);
  FakeWorker liar(server_->address(), posing);
  EXPECT_THAT(liar.WaitFor(WorkerCommand::kExit).exit().reason(), HasSubstr("the token shown"));
  FakeWorker first(server_->address(), desired.workers(0));
  FakeWorker second(server_->address(), desired.workers(1));
  first.Ready();
  second.Ready();
  EXPECT_EQ(first.WaitFor(WorkerCommand::kGeneration).generation().members_size(), 2);
}

}  // namespace
}  // namespace lockstep::coordinator
