// SPDX-License-Identifier: Apache-2.0
// Who is let in, what commands carry, and connections whose other end has vanished.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/fd.h"
#include "common/thread.h"
#include "coordinator/client/access.h"
#include "coordinator/client/certificates.h"
#include "coordinator/client/diagnosis.h"
#include "coordinator/client/token.h"
#include "coordinator/service/server.h"
#include "coordinator/service/turnstile.h"
#include "tests/integration/coordinator/test_peers.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

sockaddr_in Loopback(int port, int host = 1) {
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl((127u << 24) + static_cast<uint32_t>(host));
  name.sin_port = htons(static_cast<uint16_t>(port));
  return name;
}

// A cable between one client and a server on loopback, which can be cut without either end being
// told, as it is when a host loses its power.
class Cable {
 public:
  explicit Cable(int port) : port_(port), stop_(eventfd(0, EFD_CLOEXEC)) {
    listener_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name = Loopback(0);
    socklen_t size = sizeof(name);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
    thread_ = Thread("cable", [this] { Run(); });
  }
  ~Cable() {
    const uint64_t one = 1;
    EXPECT_EQ(write(stop_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
    thread_.Join();
  }
  const std::string& address() const { return address_; }
  void Cut() { cut_ = true; }

 private:
  void Run() {
    UniqueFd ends[2];
    for (;;) {
      pollfd fds[4] = {{stop_.get(), POLLIN, 0},
                       {ends[0].valid() ? -1 : listener_.get(), POLLIN, 0},
                       {cut_ ? -1 : ends[0].get(), POLLIN, 0},
                       {cut_ ? -1 : ends[1].get(), POLLIN, 0}};
      poll(fds, 4, 10);
      if (fds[0].revents != 0) return;
      if (fds[1].revents != 0) {
        ends[0].reset(accept(listener_.get(), nullptr, nullptr));
        ends[1].reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const sockaddr_in name = Loopback(port_);
        EXPECT_EQ(connect(ends[1].get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)),
                  0);
      }
      for (int from = 0; from < 2 && !cut_; ++from) {
        if (fds[2 + from].revents == 0) continue;
        char bytes[4096];
        const ssize_t n = read(ends[from].get(), bytes, sizeof(bytes));
        if (n <= 0) return;
        EXPECT_EQ(send(ends[1 - from].get(), bytes, static_cast<size_t>(n), MSG_NOSIGNAL), n);
      }
    }
  }

  const int port_;
  UniqueFd stop_;
  UniqueFd listener_;
  std::string address_;
  std::atomic<bool> cut_ = false;
  Thread thread_;
};

class ConnectionsTest : public ::testing::Test {
 protected:
  ConnectionsTest() {
    options_.listen = "127.0.0.1:0";
    options_.token = "secret";
  }
  void Start() {
    auto server = Server::Start(options_, Clock::Real(), store_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = Client::Create({server_->address(), options_.token});
  }
  int port() const {
    return std::stoi(server_->address().substr(server_->address().rfind(':') + 1));
  }

  ServerOptions options_;
  std::unique_ptr<Store> store_ = MakeMemoryStore();
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ConnectionsTest, TcpNeedsAToken) {
  options_.token.clear();
  const auto refused = Server::Start(options_, Clock::Real(), store_.get());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("needs a token"));
}

TEST_F(ConnectionsTest, AJobRunsOverTcpWithATokenAndNobodyElseIsLetIn) {
  Start();
  FakeAgent stranger(server_->address(), "guess");
  EXPECT_EQ(stranger.connections.WaitFor([](int c) { return c == 2; }), 2);
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(2);
  request.mutable_spec()->mutable_train()->set_shards(2);
  for (const char* token : {"", "secre", "secret0"}) {
    EXPECT_EQ(
        Client::Create({server_->address(), token})->SubmitJob(request, kPatience).status().code(),
        absl::StatusCode::kUnauthenticated)
        << token;
  }
  FakeAgent agent(server_->address(), "secret");
  ASSERT_TRUE(client_->SubmitJob(request, kPatience).ok());
  const DesiredWorkers desired = agent.WaitForWorkers(2);
  ASSERT_EQ(desired.workers_size(), 2);
  std::vector<std::unique_ptr<FakeWorker>> workers;
  for (const WorkerAssignment& assignment : desired.workers()) {
    workers.push_back(std::make_unique<FakeWorker>(server_->address(), assignment, "secret"));
    workers.back()->Ready();
  }
  EXPECT_EQ(workers[0]->WaitFor(WorkerCommand::kGeneration).generation().members_size(), 2);
  EXPECT_EQ(client_->GetCluster(kPatience)->nodes_size(), 1);
  EXPECT_FALSE(stranger.inbox.Any());
}

TEST_F(ConnectionsTest, AListComesWholeOrPageByPage) {
  Start();
  std::vector<std::string> ids;
  SubmitJobRequest submission;
  submission.mutable_spec()->set_name("mlp");
  submission.mutable_spec()->mutable_resources()->set_nodes(1);
  submission.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  submission.mutable_spec()->mutable_train()->set_shards(1);
  for (int i = 0; i < 7; ++i) ids.push_back(client_->SubmitJob(submission, kPatience)->job_id());
  const auto ids_of = [](const ListJobsResponse& jobs) {
    std::vector<std::string> of;
    for (const JobStatus& job : jobs.jobs()) of.push_back(job.job_id());
    return of;
  };
  ListJobsRequest request;
  const auto all = client_->ListJobs(request, kPatience);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(ids_of(*all), ids);
  EXPECT_EQ(all->next_page_token(), "");
  request.set_page_size(3);
  for (const int begin : {0, 3, 6}) {
    const auto page = client_->ListJobs(request, kPatience);
    ASSERT_TRUE(page.ok()) << page.status();
    const auto first = ids.begin() + begin;
    EXPECT_EQ(ids_of(*page), std::vector<std::string>(first, std::min(first + 3, ids.end())));
    EXPECT_EQ(page->next_page_token().empty(), begin == 6);
    request.set_page_token(page->next_page_token());
  }
  request.set_page_token("no such page");
  EXPECT_EQ(client_->ListJobs(request, kPatience).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// More than are served at once: each has said the beginning of something.
TEST_F(ConnectionsTest, AHostThatEndsNoHandshakeKeepsNoOtherOut) {
  Start();
  std::vector<UniqueFd> stalled;
  for (size_t i = 0; i < 3 * Turnstile::kAtFirst; ++i) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in from = Loopback(0, 2), to = Loopback(port());
    ASSERT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(from)), 0);
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    ASSERT_EQ(send(fd.get(), "PRI ", 4, MSG_NOSIGNAL), 4);
    stalled.push_back(std::move(fd));
  }
  std::vector<std::unique_ptr<FakeAgent>> agents;
  for (int i = 0; i < 20; ++i) {
    agents.push_back(std::make_unique<FakeAgent>(server_->address(), "secret"));
  }
  for (const auto& agent : agents) {
    EXPECT_EQ(agent->connections.WaitFor([](int c) { return c == 1; }), 1);
  }
  EXPECT_TRUE(client_->GetCluster(kPatience).ok());
}

TEST_F(ConnectionsTest, CommandsSayWhichCoordinatorOfWhichClusterSpeaks) {
  const auto is_desired = [](const AgentCommand& c) { return c.has_desired(); };
  std::vector<AgentCommand> told;
  for (int life = 1; life <= 2; ++life) {
    Start();
    FakeAgent agent(server_->address(), "secret");
    told.push_back(agent.inbox.WaitFor(is_desired));
    EXPECT_EQ(told.back().epoch(), life);
    server_.reset();
  }
  EXPECT_EQ(told[0].cluster_id().size(), 32u);
  EXPECT_EQ(told[0].cluster_id(), told[1].cluster_id());
  store_ = MakeMemoryStore();
  Start();
  FakeAgent agent(server_->address(), "secret");
  EXPECT_NE(agent.inbox.WaitFor(is_desired).cluster_id(), told[0].cluster_id());
}

TEST_F(ConnectionsTest, OverTlsAgentsAndUsersAreServedAndOtherClustersKnown) {
  const absl::Time now = Clock::Real()->Now();
  const auto authority = MakeAuthority(now), other = MakeAuthority(now),
             callers = MakeAuthority(now, "callers");
  ASSERT_TRUE(authority.ok() && other.ok() && callers.ok());
  const auto server = IssueServer(*authority, {"127.0.0.1"}, now, absl::Hours(1));
  ASSERT_TRUE(server.ok()) << server.status();
  options_.tls = ServerTls{.server = *server, .callers = callers->certificate};
  options_.issuer = TokenIssuer({authority->certificate, *callers});
  Start();
  const auto certified = [&](const std::string& of, const Certified& by, absl::Time ends) {
    return *IssueClient(by, NameOfToken(of), now - absl::Hours(24), ends);
  };
  const Certified own = certified("secret", *callers, now + absl::Hours(1));
  const std::string token = *TokenOf({"secret", authority->certificate, own});
  FakeAgent agent(server_->address(), token);
  agent.WaitForWorkers(0);
  EXPECT_EQ(Client::Create({server_->address(), token})->GetCluster(kPatience)->nodes_size(), 1);
  EXPECT_EQ(CertificateWarning({server_->address(), token}, kPatience).substr(0, 42),
            "the coordinator's certificate expires in 0");
  const struct {
    std::string token;
    absl::StatusCode code;
    std::string why;
  } refused[] = {
      {"secret", absl::StatusCode::kFailedPrecondition, "speaks TLS alone"},
      {"", absl::StatusCode::kFailedPrecondition, "no token was given"},
      {*TokenOf({"secret", other->certificate}), absl::StatusCode::kFailedPrecondition,
       "of another cluster"},
      {*TokenOf({"guess", authority->certificate, own}), absl::StatusCode::kUnauthenticated,
       "does not know the token"},
      {*TokenOf({"secret", authority->certificate}), absl::StatusCode::kUnauthenticated,
       "the token has none"},
      {*TokenOf(
           {"secret", authority->certificate, certified("secret", *other, absl::InfiniteFuture())}),
       absl::StatusCode::kUnauthenticated, "does not take the token's certificate"},
      {*TokenOf({"secret", authority->certificate,
                 certified("revoked", *callers, absl::InfiniteFuture())}),
       absl::StatusCode::kUnauthenticated, "does not take the token's certificate"},
      {*TokenOf({"secret", authority->certificate,
                 certified("secret", *callers, now - absl::Seconds(1))}),
       absl::StatusCode::kUnauthenticated, "certificate expired on"},
  };
  for (const auto& [shown, code, why] : refused) {
    const absl::Status status =
        Client::Create({server_->address(), shown})->GetCluster(kPatience).status();
    EXPECT_EQ(status.code(), code) << shown;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

TEST_F(ConnectionsTest, ATokensCertificateIsRenewedOverItsOwnConnection) {
  const absl::Time now = Clock::Real()->Now();
  const auto authority = MakeAuthority(now), former = MakeAuthority(now, "callers"),
             callers = MakeAuthority(now, "callers");
  ASSERT_TRUE(authority.ok() && former.ok() && callers.ok());
  const auto server = IssueServer(*authority, {"127.0.0.1"}, now, absl::Hours(1));
  options_.tls =
      ServerTls{.server = *server, .callers = callers->certificate + former->certificate};
  options_.issuer = TokenIssuer({authority->certificate, *callers});
  Start();
  const auto issued = [&](const Certified& by) {
    return *TokenOf({"secret", authority->certificate,
                     *IssueClient(by, NameOfToken("secret"), now, absl::InfiniteFuture())});
  };
  EXPECT_EQ(*RenewToken({server_->address(), issued(*callers)}, false, kPatience), std::nullopt);
  const auto renewed = RenewToken({server_->address(), issued(*former)}, false, kPatience);
  ASSERT_TRUE(renewed.ok() && renewed->has_value()) << renewed.status();
  const auto token = ParseToken(**renewed);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->secret, "secret");
  EXPECT_TRUE(CheckIssued(token->client.certificate, callers->certificate).ok());
  // A session does it by itself, and its new connections show it.
  ClientOptions shown = {server_->address(), issued(*former)};
  shown.renewed = std::make_shared<RenewedToken>();
  const auto told = std::make_shared<absl::Notification>();
  AgentSession::Callbacks callbacks;
  callbacks.hello = [] { return AgentMessage(); };
  callbacks.on_command = [](const AgentCommand&) {};
  callbacks.on_renewed = [told](const std::string&) {
    if (!told->HasBeenNotified()) told->Notify();
  };
  const auto session = OpenAgentSession(shown, std::move(callbacks));
  ASSERT_TRUE(told->WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(
      CheckIssued(ParseToken(CurrentToken(shown))->client.certificate, callers->certificate).ok());
}

// The certificate that a follower began with has expired, and the coordinator is another one.
TEST_F(ConnectionsTest, AFollowerIsRenewedAndGoesOnWhenItsFirstCertificateHasExpired) {
  const absl::Time now = Clock::Real()->Now();
  const auto authority = MakeAuthority(now), callers = MakeAuthority(now, "callers");
  ASSERT_TRUE(authority.ok() && callers.ok());
  const auto server = IssueServer(*authority, {"127.0.0.1"}, now, absl::Hours(1));
  options_.tls = ServerTls{.server = *server, .callers = callers->certificate};
  options_.issuer = TokenIssuer({authority->certificate, *callers});
  Start();
  const auto issued = [&](absl::Time ends) {
    return *TokenOf({"secret", authority->certificate,
                     *IssueClient(*callers, NameOfToken("secret"), now - absl::Minutes(1), ends)});
  };
  const auto user = Client::Create({server_->address(), issued(absl::InfiniteFuture())});
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  request.mutable_spec()->mutable_train()->set_shards(1);
  const auto job = user->SubmitJob(request, kPatience);
  ASSERT_TRUE(job.ok()) << job.status();

  absl::Time ends;
  ClientOptions shown;
  std::unique_ptr<Client> follower;
  std::atomic<bool> heard, over;
  absl::Status followed;
  JobState last = {};
  Thread thread;
  // On a busy machine a certificate may have expired before its follower has come: then one that
  // is good for longer.
  for (absl::Duration good_for = absl::Seconds(5);; good_for *= 2) {
    ends = Clock::Real()->Now() + good_for;
    shown = {server_->address(), issued(ends)};
    shown.renewed = std::make_shared<RenewedToken>();
    follower = Client::Create(shown);
    heard = over = false;
    thread = Thread("follower", [&] {
      FollowJobRequest follow;
      follow.set_job_id(job->job_id());
      follow.set_follow(true);
      followed = follower->FollowJob(
          follow,
          [&](const JobEvent& event) {
            heard = true;
            if (event.has_state()) last = event.state().state();
            return true;
          },
          kPatience);
      over = true;
    });
    while (shown.renewed->Get().empty() && !over) Clock::Real()->Sleep(absl::Milliseconds(20));
    if (heard || Clock::Real()->Now() < ends) break;
    thread.Join();
  }
  ASSERT_NE(shown.renewed->Get(), "") << followed;
  Clock::Real()->Sleep(ends + absl::Seconds(1) - Clock::Real()->Now());
  EXPECT_EQ(Client::Create({shown.address, shown.token})->GetCluster(kPatience).status().code(),
            absl::StatusCode::kUnauthenticated);
  options_.listen = server_->address();
  server_.reset();
  Start();
  CancelJobRequest cancel;
  cancel.set_job_id(job->job_id());
  EXPECT_TRUE(user->CancelJob(cancel, kPatience).ok());
  thread.Join();
  EXPECT_TRUE(followed.ok()) << followed;
  EXPECT_EQ(last, CANCELLED);
}

TEST_F(ConnectionsTest, TlsToAPortWithoutIsSaid) {
  Start();
  const auto authority = MakeAuthority(Clock::Real()->Now());
  const std::string token = *TokenOf({"secret", authority->certificate});
  const absl::Status status =
      Client::Create({server_->address(), token})->GetCluster(kPatience).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not speak TLS"));
}

// A connection of 127.0.0.2 that says the beginning of something. Whether it was closed at once.
bool ClosedAtOnce(const UniqueFd& fd, int port) {
  const sockaddr_in from = Loopback(0, /*host=*/2), to = Loopback(port);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(from)), 0);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  send(fd.get(), "PRI ", 4, MSG_NOSIGNAL);
  char byte;
  return recv(fd.get(), &byte, 1, 0) <= 0;  // who is let in hears HTTP/2's settings
}

TEST_F(ConnectionsTest, AHostThatProvesNothingKeepsNobodyElseOut) {
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit few = {192, files.rlim_max};  // 128 connections, 32 of one host before a token
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  Start();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  std::vector<UniqueFd> silent;
  for (bool closed = false; !closed && silent.size() < 100;) {
    silent.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    closed = ClosedAtOnce(silent.back(), port());
  }
  EXPECT_EQ(silent.size(), 33u);
  EXPECT_TRUE(client_->GetCluster(kPatience).ok()) << "from another host";
  silent.clear();
  bool again = false;
  for (const absl::Time give_up = Clock::Real()->Now() + kPatience;
       !again && Clock::Real()->Now() < give_up;) {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    again = !ClosedAtOnce(fd, port());
  }
  EXPECT_TRUE(again) << "those that ended do not count";
}

TEST_F(ConnectionsTest, AMessageThatIsTooLargeIsRefused) {
  Start();
  SubmitJobRequest request;
  request.set_source(std::string(5 << 20, 'x'));
  EXPECT_EQ(client_->SubmitJob(request, kPatience).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(client_->GetCluster(kPatience).ok());
}

// Both ends find out by themselves that nobody is there any more.
TEST_F(ConnectionsTest, AConnectionWhoseOtherEndVanishedIsGivenUp) {
  Start();
  auto cable = std::make_unique<Cable>(port());
  FakeAgent agent(cable->address(), "secret");
  EXPECT_EQ(agent.connections.WaitFor([](int c) { return c == 1; }), 1);
  agent.WaitForWorkers(0);
  ASSERT_EQ(client_->GetCluster(kPatience)->nodes_size(), 1);
  EXPECT_TRUE(client_->GetCluster(kPatience)->nodes(0).connected());
  cable->Cut();
  EXPECT_EQ(agent.connections.WaitFor([](int c) { return c == 2; }), 2);
  bool connected = true;
  for (const absl::Time give_up = Clock::Real()->Now() + kPatience;
       connected && Clock::Real()->Now() < give_up;) {
    connected = client_->GetCluster(kPatience)->nodes(0).connected();
  }
  EXPECT_FALSE(connected);
}

}  // namespace
}  // namespace lockstep::coordinator
