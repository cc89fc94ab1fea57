// SPDX-License-Identifier: Apache-2.0
// A real server on a Unix socket and real client sessions, in one process.
#include "coordinator/service/server.h"

#include <gmock/gmock.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>

#include "coordinator/client/package_store.h"
#include "coordinator/core/tokens.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/journal.pb.h"
#include "tests/integration/coordinator/test_peers.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

class CoordinatorServiceTest : public ::testing::Test {
 protected:
  CoordinatorServiceTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    options_.listen = "unix:" + folder_ + "/coordinator";
  }
  ~CoordinatorServiceTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  void Start() {
    auto server = Server::Start(options_, Clock::Real(), store_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = Client::Create({server_->address(), options_.token});
  }
  static SubmitJobRequest Request(int workers) {
    SubmitJobRequest request;
    request.mutable_spec()->set_name("mlp");
    request.mutable_spec()->mutable_resources()->set_nodes(1);
    request.mutable_spec()->mutable_resources()->set_nproc_per_node(workers);
    request.mutable_spec()->mutable_train()->set_shards(4);
    request.mutable_spec()->mutable_restart()->set_max_restarts(0);  // a death ends the job
    return request;
  }
  // All events up to the end of the job.
  std::vector<JobEvent> Follow(const std::string& job_id) {
    std::vector<JobEvent> events;
    FollowJobRequest request;
    request.set_job_id(job_id);
    request.set_logs(true);
    request.set_follow(true);
    const absl::Status status = client_->FollowJob(
        request,
        [&](const JobEvent& event) {
          events.push_back(event);
          return true;
        },
        kPatience);
    EXPECT_TRUE(status.ok()) << status;
    return events;
  }

  std::string folder_;
  ServerOptions options_;
  std::unique_ptr<Store> store_ = MakeMemoryStore();
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

// A job of `size` workers that has got its first generation.
struct RunningJob {
  RunningJob(Client& client, const std::string& address, const SubmitJobRequest& request, int size)
      : agent(address) {
    auto submitted = client.SubmitJob(request, kPatience);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    id = submitted->job_id();
    desired = agent.WaitForWorkers(size);
    for (const WorkerAssignment& assignment : desired.workers()) {
      workers.push_back(std::make_unique<FakeWorker>(address, assignment));
      workers.back()->Ready();
    }
    for (auto& worker : workers) {
      generation = worker->WaitFor(WorkerCommand::kGeneration).generation();
    }
  }
  FakeAgent agent;
  std::string id;
  DesiredWorkers desired;
  std::vector<std::unique_ptr<FakeWorker>> workers;
  Generation generation;
};

TEST_F(CoordinatorServiceTest, RunsAJobFromSubmitToSuccess) {
  Start();
  RunningJob job(*client_, server_->address(), Request(2), 2);
  EXPECT_EQ(job.generation.generation(), 1);
  ASSERT_EQ(job.generation.members_size(), 2);
  EXPECT_EQ(job.generation.members(1).shard_begin(), 2);
  EXPECT_EQ(job.generation.members(1).shard_end(), 4);
  EXPECT_EQ(job.generation.members(1).address().shm(), "shm-1");
  for (auto& worker : job.workers) worker->Finish();
  for (auto& worker : job.workers) {
    EXPECT_EQ(worker->WaitFor(WorkerCommand::kExit).exit().code(), 0);
    job.agent.Exited(worker->assignment, 0, 0, 1 + worker->assignment.slot());
  }
  const std::vector<JobEvent> events = Follow(job.id);
  ASSERT_FALSE(events.empty());
  const JobResult& result = events.back().state().result();
  EXPECT_EQ(result.state(), SUCCEEDED);
  EXPECT_EQ(result.exit_code(), 0);
  EXPECT_EQ(result.steps(), 12);
  EXPECT_EQ(result.model_path(), "model/model.safetensors");
  EXPECT_THAT(result.peak_rss_bytes(), ::testing::ElementsAre(1000, 1001));
  EXPECT_EQ(client_
                ->CancelJob(
                    [&] {
                      CancelJobRequest request;
                      request.set_job_id(job.id);
                      return request;
                    }(),
                    kPatience)
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorServiceTest, NamesTheKilledWorkerThoughItsVictimSpokeFirst) {
  Start();
  RunningJob job(*client_, server_->address(), Request(2), 2);
  WorkerMessage lost = job.workers[0]->Message();
  lost.mutable_peer_lost()->set_generation(1);
  lost.mutable_peer_lost()->set_rank(1);
  job.workers[0]->session->Send(lost);
  EXPECT_EQ(job.workers[0]->WaitFor(WorkerCommand::kAbort).abort().generation(), 1);
  job.agent.Exited(job.workers[0]->assignment, 1, 0, 2);
  job.agent.Exited(job.workers[1]->assignment, 0, 9, 1);
  const std::vector<JobEvent> events = Follow(job.id);
  const JobResult& result = events.back().state().result();
  EXPECT_EQ(result.state(), FAILED);
  EXPECT_EQ(result.exit_code(), 137);
  ASSERT_EQ(result.faults_size(), 1);
  EXPECT_EQ(result.faults(0).rank(), 1);
  EXPECT_EQ(result.faults(0).cause(), "killed by SIGKILL (signal 9)");
  EXPECT_THAT(result.faults(0).victims(), ::testing::ElementsAre(0));
}

TEST_F(CoordinatorServiceTest, DrainsWhenCancelled) {
  Start();
  RunningJob job(*client_, server_->address(), Request(2), 2);
  CancelJobRequest cancel;
  cancel.set_job_id(job.id);
  ASSERT_TRUE(client_->CancelJob(cancel, kPatience).ok());
  for (auto& worker : job.workers) {
    EXPECT_TRUE(worker->WaitFor(WorkerCommand::kDrain).has_drain());
    worker->Finish(/*drained=*/true);
  }
  // As real workers do: nobody leaves before it is let go.
  for (auto& worker : job.workers) worker->WaitFor(WorkerCommand::kExit);
  for (auto& worker : job.workers) job.agent.Exited(worker->assignment, 0, 0, 1);
  const JobStatus last = Follow(job.id).back().state();
  EXPECT_EQ(last.state(), CANCELLED);
  EXPECT_EQ(last.result().exit_code(), 130);
  EXPECT_EQ(last.reason(), "drained at step 12; model saved at model/model.safetensors");
}

TEST_F(CoordinatorServiceTest, SessionsSurviveARestartOfTheServer) {
  Start();
  FakeAgent agent(server_->address());
  EXPECT_TRUE(
      agent.inbox.WaitFor([](const AgentCommand& c) { return c.has_desired(); }).has_desired());
  server_.reset();
  EXPECT_EQ(agent.connections.WaitFor([](int c) { return c == 2; }), 2);
  agent.inbox.Clear();
  Start();
  EXPECT_TRUE(
      agent.inbox.WaitFor([](const AgentCommand& c) { return c.has_desired(); }).has_desired());
}

// Its state directory is another one, without the job's workdir.
TEST_F(CoordinatorServiceTest, TheNextLeaderKnowsARequestThatTheLastOneAccepted) {
  options_.packages = folder_ + "/packages";
  const std::string package = PackageId("bytes");
  ASSERT_TRUE(PackageStore({options_.packages}).Put(package, "bytes").ok());
  Start();
  SubmitJobRequest request = Request(2);
  request.set_request_id("once");
  request.mutable_spec()->set_workdir(PackageWorkdir(package));
  const auto first = client_->SubmitJob(request, kPatience);
  ASSERT_TRUE(first.ok()) << first.status();
  server_.reset();
  options_.packages = folder_ + "/others";
  Start();
  const auto again = client_->SubmitJob(request, kPatience);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->job_id(), first->job_id());
  request.set_request_id("twice");
  EXPECT_TRUE(absl::IsFailedPrecondition(client_->SubmitJob(request, kPatience).status()));
}

TEST_F(CoordinatorServiceTest, SendsUnknownWorkersAway) {
  Start();
  WorkerAssignment assignment;
  assignment.set_job_id("nojob");
  assignment.set_incarnation("nojob.0.1");
  // As an earlier life of this coordinator made it.
  State earlier;
  const auto rows = store_->GetAll();
  ASSERT_TRUE(rows.ok());
  for (const StoredRow& row : *rows) {
    CoordinatorRecord record;
    if (row.key == "coordinator" && record.ParseFromString(row.value)) {
      earlier.secret = record.secret();
    }
  }
  assignment.set_token(WorkerToken(earlier, "nojob.0.1"));
  FakeWorker worker(server_->address(), assignment, /*token=*/"", /*epoch=*/1);
  EXPECT_THAT(worker.WaitFor(WorkerCommand::kExit).exit().reason(), HasSubstr("not wanted"));
}

TEST_F(CoordinatorServiceTest, AsksForItsToken) {
  options_.token = "secret";
  Start();
  auto stranger = Client::Create({server_->address(), "guess"});
  EXPECT_EQ(stranger->GetCluster(kPatience).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(client_->GetCluster(kPatience).ok());
  FakeAgent agent(server_->address(), "secret");
  EXPECT_TRUE(
      agent.inbox.WaitFor([](const AgentCommand& c) { return c.has_desired(); }).has_desired());
}

TEST_F(CoordinatorServiceTest, TakesATokenThatItDoesNotAskFor) {
  options_.other_tokens = {"secret"};
  Start();
  EXPECT_TRUE(client_->GetCluster(kPatience).ok());
  EXPECT_TRUE(Client::Create({server_->address(), "secret"})->GetCluster(kPatience).ok());
  EXPECT_EQ(Client::Create({server_->address(), "guess"})->GetCluster(kPatience).status().code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(CoordinatorServiceTest, SaysWhyAJobWaits) {
  Start();
  FakeAgent agent(server_->address(), "", 2);
  agent.WaitForWorkers(0);
  EXPECT_TRUE(
      agent.inbox.WaitFor([](const AgentCommand& c) { return c.has_desired(); }).has_desired());
  auto submitted = client_->SubmitJob(Request(4), kPatience);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  DescribeJobRequest describe;
  describe.set_job_id(submitted->job_id());
  auto described = client_->DescribeJob(describe, kPatience);
  ASSERT_TRUE(described.ok());
  EXPECT_EQ(described->status().state(), PENDING);
  EXPECT_EQ(
      described->status().reason(),
      "needs 4 slots on 1 node; 1 node with 2 slots is connected; no node has 4 slots: "
      "'launcher join --slots=4' makes one that has; or submit with --nproc-per-node=2, or set "
      "elastic.min_workers");
}

TEST_F(CoordinatorServiceTest, RefusesAnAddressInUse) {
  options_.listen = "127.0.0.1:0";
  options_.token = "secret";
  Start();
  EXPECT_TRUE(client_->GetCluster(kPatience).ok());
  ServerOptions second = options_;
  second.listen = server_->address();
  auto refused = Server::Start(second, Clock::Real(), store_.get());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("in use"));
}

TEST_F(CoordinatorServiceTest, RefusesASocketOfALiveServer) {
  Start();
  auto refused = Server::Start(options_, Clock::Real(), store_.get());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("in use"));
  EXPECT_TRUE(client_->GetCluster(kPatience).ok());
}

TEST_F(CoordinatorServiceTest, ServesAbstractSockets) {
  options_.listen = "unix-abstract:" + folder_;
  Start();
  EXPECT_TRUE(client_->GetCluster(kPatience).ok());
}

TEST_F(CoordinatorServiceTest, RefusesOpenAddresses) {
  options_.listen = "0.0.0.0:7070";
  auto refused = Server::Start(options_, Clock::Real(), store_.get());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("without TLS"));
}

TEST_F(CoordinatorServiceTest, SaysThatNobodyAnswers) {
  auto client = Client::Create({"unix:" + folder_ + "/nobody", ""});
  EXPECT_EQ(client->GetCluster(absl::Milliseconds(50)).status().code(),
            absl::StatusCode::kUnavailable);
}

// What gRPC's server says of the calls that it still has when it is stopped.
class CancelsOnce : public Coordinator::Service {
 public:
  grpc::Status SubmitJob(grpc::ServerContext*, const SubmitJobRequest*,
                         SubmitJobResponse* response) override {
    if (calls_++ == 0) return grpc::Status::CANCELLED;
    response->set_job_id("mlp-1");
    return grpc::Status::OK;
  }
  grpc::Status FollowJob(grpc::ServerContext*, const FollowJobRequest* request,
                         grpc::ServerWriter<JobEvent>* writer) override {
    // By now the name may be another job's.
    if (request->after_sequence() > 0 && request->job_id() != "mlp-1") {
      return {grpc::StatusCode::NOT_FOUND, request->job_id()};
    }
    JobEvent event;
    event.mutable_state()->set_job_id("mlp-1");
    event.set_sequence(request->after_sequence() + 1);
    writer->Write(event);
    return event.sequence() == 1 ? grpc::Status::CANCELLED : grpc::Status::OK;
  }
  int calls() const { return calls_; }

 private:
  std::atomic<int> calls_ = 0;
};

TEST_F(CoordinatorServiceTest, ACoordinatorThatStopsIsAskedAgain) {
  CancelsOnce service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  client_ = Client::Create({options_.listen, ""});
  const auto submitted = client_->SubmitJob(Request(1), kPatience);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  EXPECT_EQ(submitted->job_id(), "mlp-1");
  EXPECT_EQ(service.calls(), 2);
  EXPECT_EQ(Follow("mlp-1").size(), 2);
  EXPECT_EQ(Follow("mlp").size(), 2) << "a follower keeps to the job that it began with";
}

}  // namespace
}  // namespace lockstep::coordinator
