// SPDX-License-Identifier: Apache-2.0
// Roles, owners and tokens in the core.
#include "coordinator/core/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/core/core.h"
#include "coordinator/core/questions.h"
#include "coordinator/core/tokens.h"
#include "coordinator/outbox/request_rows.h"
#include "proto/files.pb.h"
#include "proto/package.pb.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Requester Who(const std::string& user, Role role) {
  Requester who;
  who.set_user(user);
  who.set_role(role);
  return who;
}

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() { state_.secret = "of the cluster"; }

  Effects Do(const Event& event) { return Step(state_, event, now_ += absl::Seconds(1)); }
  absl::Status Submit(const std::string& id, const std::string& user, const Requester& by) {
    return SubmitAfter(id, user, by, "");
  }
  absl::Status SubmitAfter(const std::string& id, const std::string& user, const Requester& by,
                           const std::string& before) {
    SubmitJobRequest request;
    if (!before.empty()) request.add_after(before);
    request.mutable_spec()->set_name("mlp");
    request.mutable_spec()->mutable_resources()->set_nodes(1);
    request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
    request.mutable_spec()->mutable_train()->set_shards(1);
    request.set_user(user);
    *request.mutable_by() = by;
    return Do(Submitted{id, request}).reply;
  }
  absl::Status Create(const std::string& id, const std::string& user, Role role,
                      const Requester& by, absl::Time expires = absl::InfiniteFuture()) {
    TokenCreated event;
    event.record.mutable_info()->set_id(id);
    event.record.mutable_info()->set_user(user);
    event.record.mutable_info()->set_role(role);
    if (expires != absl::InfiniteFuture()) {
      event.record.mutable_info()->mutable_expires()->set_seconds(absl::ToUnixSeconds(expires));
    }
    event.record.set_sha256(TokenHash("secret of " + id));
    *event.record.mutable_by() = by;
    return Do(event).reply;
  }

  State state_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  const Requester ann_ = Who("ann", ROLE_SUBMIT), bob_ = Who("bob", ROLE_SUBMIT),
                  olga_ = Who("olga", ROLE_OPERATE), adam_ = Who("adam", ROLE_ADMIN),
                  node_ = Who("node", ROLE_JOIN);
};

std::vector<const google::protobuf::ServiceDescriptor*> AllServices() {
  return {SubmitJobRequest::descriptor()->file()->service(0),
          FindFilesRequest::descriptor()->file()->service(0),
          HasPackageRequest::descriptor()->file()->service(0),
          TokenInfo::descriptor()->file()->service(0)};
}

TEST_F(AccessTest, EveryCallHasARowAndEveryRowACall) {
  std::set<std::string> calls;
  for (const auto* service : AllServices()) {
    ASSERT_EQ(service->file()->service_count(), 1) << service->file()->name();
    for (int i = 0; i < service->method_count(); ++i) {
      calls.insert(service->name() + "/" + service->method(i)->name());
    }
  }
  std::set<std::string> rows;
  for (const AccessRule& rule : AccessTable()) {
    EXPECT_TRUE(rows.insert(rule.call).second) << rule.call << " twice";
    EXPECT_EQ(FindRule(rule.call), &rule);
    // Who may more of a user's roles may all that the lesser may.
    EXPECT_LE(rule.submit, rule.operate) << rule.call;
    EXPECT_LE(rule.operate, rule.admin) << rule.call;
  }
  EXPECT_EQ(rows, calls);
}

TEST_F(AccessTest, WhatIsNotInTheTableIsNobodys) {
  EXPECT_EQ(ReachOf("Coordinator/Shutdown", ROLE_ADMIN), Reach::kNone);
  EXPECT_TRUE(absl::IsPermissionDenied(CheckCall("Coordinator/Shutdown", adam_)));
  EXPECT_TRUE(
      absl::IsPermissionDenied(CheckCall("Coordinator/ListJobs", Who("x", static_cast<Role>(99)))));
}

TEST_F(AccessTest, ANodesTokenIsNoUsers) {
  for (const AccessRule& rule : AccessTable()) {
    const std::string call = rule.call;
    const bool of_nodes = call == "Coordinator/AgentSession" || call == "Files/Send" ||
                          call == "Packages/GetPackage" || call == "Access/WhoAmI" ||
                          call == "Access/RenewToken";
    EXPECT_EQ(CheckCall(call, node_).ok(), of_nodes) << call;
    const bool of_workers = call == "Coordinator/WorkerSession" || call == "Access/WhoAmI" ||
                            call == "Access/RenewToken";
    EXPECT_EQ(CheckCall(call, Who("j.0.1", ROLE_WORKER)).ok(), of_workers) << call;
  }
}

TEST_F(AccessTest, UsersChangeTheirOwnJobsAndOperatorsAll) {
  ASSERT_TRUE(Submit("a1", "ann", ann_).ok());
  ASSERT_TRUE(Submit("b1", "bob", bob_).ok());
  const std::vector<Event> of_bob = {CancelRequested{"a1", true, bob_},
                                     ScaleRequested{"a1", 1, bob_},
                                     HoldRequested{"a1", false, bob_}};
  for (const Event& event : of_bob) {
    const absl::Status refused = Do(event).reply;
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("job a1 is ann's"));
    EXPECT_THAT(refused.message(), HasSubstr("operate or admin"));
  }
  EXPECT_FALSE(state_.jobs.at("a1").final());
  EXPECT_FALSE(state_.jobs.at("a1").held);
  EXPECT_TRUE(Do(HoldRequested{"a1", false, ann_}).reply.ok());
  EXPECT_TRUE(Do(HoldRequested{"a1", true, olga_}).reply.ok());
  EXPECT_TRUE(Do(CancelRequested{"a1", true, ann_}).reply.ok());
  EXPECT_TRUE(Do(CancelRequested{"b1", true, adam_}).reply.ok());
}

TEST_F(AccessTest, ANameIsOnesOwnJobFirst) {
  ASSERT_TRUE(Submit("a1", "ann", ann_).ok());
  ASSERT_TRUE(Submit("b1", "bob", bob_).ok());  // of the same name
  EXPECT_EQ(*FindJobFor(state_, "mlp", "Coordinator/CancelJob", bob_), "b1");
  EXPECT_TRUE(absl::IsFailedPrecondition(
      FindJobFor(state_, "mlp", "Coordinator/CancelJob", olga_).status()));
}

TEST_F(AccessTest, NobodySubmitsAsAnotherButAnAdministrator) {
  EXPECT_TRUE(absl::IsPermissionDenied(Submit("a1", "ann", bob_)));
  EXPECT_TRUE(absl::IsPermissionDenied(Submit("a1", "ann", olga_)));
  EXPECT_TRUE(absl::IsPermissionDenied(Submit("a1", "node", node_)));
  EXPECT_TRUE(Submit("a1", "ann", adam_).ok());
}

TEST_F(AccessTest, NodesAreTheOperators) {
  EXPECT_TRUE(absl::IsPermissionDenied(Do(DrainRequested{"n1", "", "ann", ann_}).reply));
  EXPECT_TRUE(absl::IsPermissionDenied(Do(UndrainRequested{"n1", ann_}).reply));
  EXPECT_TRUE(absl::IsNotFound(Do(DrainRequested{"n1", "", "olga", olga_}).reply));
}

TEST_F(AccessTest, OthersJobsAreListedWithoutWhatTheyAre) {
  ListJobsResponse jobs;
  for (const char* user : {"ann", "bob"}) {
    JobStatus& job = *jobs.add_jobs();
    job.set_user(user);
    job.set_state(FAILED);
    job.set_reason("rank 0: the secret is xyz");
    job.set_run_dir("runs/x");
    job.mutable_result()->set_model_path("/m");
    job.mutable_progress()->set_loss(0.5);
    job.set_moves("rank 0 leaves xyz");
  }
  ListJobsResponse of_ann = jobs;
  HideOthers(state_, ann_, of_ann);
  EXPECT_EQ(of_ann.jobs(0).SerializeAsString(), jobs.jobs(0).SerializeAsString());
  EXPECT_EQ(of_ann.jobs(1).user(), "bob");
  EXPECT_THAT(of_ann.jobs(1).DebugString(), Not(HasSubstr("xyz")));
  EXPECT_FALSE(of_ann.jobs(1).has_result());
  EXPECT_FALSE(of_ann.jobs(1).has_progress());
  EXPECT_EQ(of_ann.jobs(1).run_dir(), "");
  HideOthers(state_, olga_, jobs);
  EXPECT_EQ(jobs.jobs(1).run_dir(), "runs/x");
}

TEST_F(AccessTest, WhatAWorkerSaidOfANodeThatAJobLeavesOutIsItsUsersAlone) {
  ASSERT_TRUE(Submit("b1", "bob", bob_).ok());
  ASSERT_TRUE(Submit("b2", "bob", bob_).ok());
  state_.jobs.at("b1").excluded["n1"] = {"cannot read /home/bob/xyz", 1, absl::InfiniteFuture()};
  const auto jobs = ListJobs(state_, ListJobsRequest(), now_);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  for (const Requester& who : {ann_, bob_, olga_}) {
    ListJobsResponse shown = *jobs;
    HideOthers(state_, who, shown);
    ASSERT_EQ(shown.jobs_size(), 2);
    const bool may_see = who.user() != "ann";
    EXPECT_EQ(absl::StrContains(shown.DebugString(), "xyz"), may_see) << who.user();
    EXPECT_NE(shown.jobs(1).reason(), "") << who.user();
  }
}

TEST_F(AccessTest, ATokenIsItsUserUntilItExpiresOrIsRevoked) {
  const absl::Time expires = now_ + absl::Hours(1);
  ASSERT_TRUE(Create("t1", "ann", ROLE_SUBMIT, adam_, expires).ok());
  ASSERT_TRUE(Create("t2", "node7", ROLE_JOIN, adam_).ok());
  ASSERT_NE(FindToken(state_, "secret of t1", now_), nullptr);
  EXPECT_EQ(FindToken(state_, "secret of t1", now_)->user(), "ann");
  EXPECT_EQ(FindToken(state_, "secret of t1", now_)->created_by(), "adam");
  EXPECT_EQ(FindToken(state_, "secret of t3", now_), nullptr);
  EXPECT_EQ(FindToken(state_, TokenHash("secret of t1"), now_), nullptr) << "the hash is no token";
  EXPECT_EQ(FindToken(state_, "", now_), nullptr);
  EXPECT_EQ(FindToken(state_, "secret of t1", expires), nullptr);
  const absl::Status expired = WhyNotTaken(state_, "secret of t1");
  EXPECT_TRUE(absl::IsUnauthenticated(expired));
  EXPECT_THAT(std::string(expired.message()), HasSubstr("expired on "));
  EXPECT_TRUE(Do(TokenRevoked{"t2", adam_}).reply.ok());
  EXPECT_EQ(FindToken(state_, "secret of t2", now_), nullptr);
  EXPECT_THAT(std::string(WhyNotTaken(state_, "secret of t2").message()), HasSubstr("was revoked"));
  EXPECT_TRUE(absl::IsNotFound(Do(TokenRevoked{"t2", adam_}).reply));
}

TEST_F(AccessTest, TokensAreMadeByAdministratorsAndRevokedByTheirUsersToo) {
  EXPECT_TRUE(absl::IsPermissionDenied(Create("t1", "ann", ROLE_ADMIN, ann_)));
  EXPECT_TRUE(absl::IsPermissionDenied(Create("t1", "ann", ROLE_SUBMIT, olga_)));
  for (const char* bad : {"", "a b", "../x", "-x", ".x", "a/b", "a\n"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Create("t1", bad, ROLE_SUBMIT, adam_))) << bad;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Create("t1", "ann", ROLE_WORKER, adam_)));
  EXPECT_TRUE(absl::IsInvalidArgument(Create("t1", "ann", ROLE_UNSPECIFIED, adam_)));
  EXPECT_TRUE(absl::IsInvalidArgument(Create("t1", "ann", ROLE_SUBMIT, adam_, now_)));
  ASSERT_TRUE(Create("t1", "ann", ROLE_SUBMIT, adam_).ok());
  // Whose it is not learns not even that it is there.
  EXPECT_TRUE(absl::IsNotFound(Do(TokenRevoked{"t1", bob_}).reply));
  EXPECT_EQ(ListTokens(state_, bob_).tokens_size(), 0);
  EXPECT_EQ(ListTokens(state_, ann_).tokens_size(), 1);
  EXPECT_EQ(ListTokens(state_, adam_).tokens_size(), 1);
  EXPECT_TRUE(Do(TokenRevoked{"t1", ann_}).reply.ok());
}

TEST_F(AccessTest, TokensAreInTheJournalAsHashes) {
  TokenCreated event;
  event.record.mutable_info()->set_id("t1");
  event.record.mutable_info()->set_user("ann");
  event.record.mutable_info()->set_role(ROLE_SUBMIT);
  event.record.set_sha256(TokenHash("the secret"));
  *event.record.mutable_by() = adam_;
  const Row asked = RequestRow(1, event);
  EXPECT_THAT(asked.value, Not(HasSubstr("the secret")));
  const auto stored = ParseRequestRow(asked);
  ASSERT_TRUE(stored.ok()) << stored.status();
  Effects effects = Do(stored->event);
  ASSERT_EQ(effects.rows.size(), 1u);
  EXPECT_EQ(effects.rows[0].key, "token/t1");
  EXPECT_THAT(effects.rows[0].value, Not(HasSubstr("the secret")));
  const auto restored = Restore(effects.rows, Options(), now_);
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_NE(FindToken(*restored, "the secret", now_), nullptr);
  // A row that could not be written is written again.
  const Row row = effects.rows[0];
  SaveFailed(state_, effects, now_);
  effects = Do(Tick{});
  ASSERT_EQ(effects.rows.size(), 1u);
  EXPECT_EQ(effects.rows[0].value, row.value);
  effects = Do(TokenRevoked{"t1", adam_});
  ASSERT_EQ(effects.rows.size(), 1u);
  EXPECT_TRUE(effects.rows[0].erased);
}

TEST_F(AccessTest, WhoAskedIsWrittenDownWithTheRequest) {
  for (const Event& event :
       std::vector<Event>{CancelRequested{"x", true, ann_}, ScaleRequested{"x", 2, ann_},
                          HoldRequested{"x", true, ann_}, DrainRequested{"n", "r", "u", ann_},
                          UndrainRequested{"n", ann_}, TokenRevoked{"t", ann_}}) {
    const auto stored = ParseRequestRow(RequestRow(1, event));
    ASSERT_TRUE(stored.ok());
    EXPECT_EQ(RequestRow(1, stored->event).value, RequestRow(1, event).value);
    EXPECT_THAT(RequestRow(1, stored->event).value, HasSubstr("ann"));
  }
}

TEST_F(AccessTest, AWorkersTokenIsOfOneLife) {
  const std::string token = WorkerToken(state_, "job1.0.1");
  EXPECT_EQ(WorkerOf(state_, token), "job1.0.1");
  std::string forged = token;
  forged.replace(forged.find("job1.0.1"), 8, "job1.0.2");
  EXPECT_EQ(WorkerOf(state_, forged), "") << "the digits are of another life";
  forged = token;
  forged.back() = forged.back() == '0' ? '1' : '0';
  EXPECT_EQ(WorkerOf(state_, forged), "");
  for (const char* wrong : {"", "worker.", "worker.job1.0.1", "worker.job1.0.1."}) {
    EXPECT_EQ(WorkerOf(state_, wrong), "") << wrong;
  }
  State other;
  other.secret = "of another cluster";
  EXPECT_EQ(WorkerOf(other, token), "");
  other.secret.clear();
  EXPECT_EQ(WorkerToken(other, "job1.0.1"), "");
  EXPECT_EQ(WorkerOf(other, token), "");
}

TEST_F(AccessTest, AWorkerSpeaksForItselfAlone) {
  WorkerSaid said;
  said.session = 7;
  said.shown = "a1.0.1";
  said.message.set_job_id("b1");
  said.message.set_incarnation("b1.0.1");
  said.message.mutable_hello()->set_protocol_version(1);
  const Effects effects = Do(said);
  ASSERT_EQ(effects.to_workers.size(), 1u);
  EXPECT_TRUE(effects.to_workers[0].close);
  EXPECT_THAT(effects.to_workers[0].command.exit().reason(), HasSubstr("of worker a1.0.1"));
  EXPECT_TRUE(state_.worker_sessions.empty());
}

// A node of whom another node's agent tells what became of its worker.
TEST_F(AccessTest, AnAgentSpeaksOfItsOwnNodeAlone) {
  for (const char* id : {"n1", "n2"}) {
    AgentSaid join;
    join.session = id[1] - '0';
    AgentHello& hello = *join.message.mutable_hello();
    hello.set_node_id(id);
    hello.set_incarnation(id);
    hello.set_host(id);
    hello.set_slots(id[1] == '1' ? 1 : 0);
    hello.set_protocol_version(1);
    Do(join);
  }
  ASSERT_TRUE(Submit("a1", "ann", ann_).ok());
  Do(Tick{});
  const Job& job = state_.jobs.at("a1");
  ASSERT_EQ(job.slots.size(), 1u);
  ASSERT_EQ(job.slots[0].worker->node_id, "n1");
  AgentSaid lie;
  lie.session = 2;
  WorkerExited& exited = *lie.message.mutable_exited();
  exited.set_job_id("a1");
  exited.set_worker_incarnation(job.slots[0].worker->incarnation);
  exited.set_exit_code(1);
  Do(lie);
  EXPECT_FALSE(job.slots[0].worker->dead());
  lie.message.mutable_died()->set_job_id("a1");
  lie.message.mutable_died()->set_worker_incarnation(job.slots[0].worker->incarnation);
  Do(lie);
  EXPECT_FALSE(job.slots[0].worker->dead());
  lie.message.mutable_log()->set_job_id("a1");
  lie.message.mutable_log()->mutable_lines()->add_lines("forged");
  EXPECT_TRUE(Do(lie).events.empty());
}

// A worker that names a generation, or a step, that nobody has been in.
TEST_F(AccessTest, AForgedGenerationIsNotBelieved) {
  AgentSaid join;
  join.session = 1;
  AgentHello& hello = *join.message.mutable_hello();
  hello.set_node_id("n1");
  hello.set_incarnation("n1");
  hello.set_slots(1);
  hello.set_protocol_version(1);
  Do(join);
  ASSERT_TRUE(Submit("a1", "ann", ann_).ok());
  Do(Tick{});
  const Job& job = state_.jobs.at("a1");
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const auto& [generation, step] : std::vector<std::pair<int64_t, int64_t>>{
           {most, 0}, {-1, 0}, {0, most}, {0, -5}, {5000000, 3}}) {
    WorkerSaid said;
    said.session = 9;
    said.shown = job.slots[0].worker->incarnation;
    said.message.set_job_id("a1");
    said.message.set_incarnation(said.shown);
    said.message.mutable_hello()->set_protocol_version(1);
    Do(said);
    said.message.mutable_ready()->set_highest_generation(generation);
    said.message.mutable_ready()->set_committed_step(step);
    const Effects effects = Do(said);
    ASSERT_EQ(effects.to_workers.size(), 1u);
    EXPECT_THAT(effects.to_workers[0].command.exit().reason(), HasSubstr("which cannot be"));
    EXPECT_FALSE(job.slots[0].worker->ready.has_value());
    EXPECT_EQ(job.generation.message.generation(), 0);
  }
}

// Two users have a job of the same name, and one waits for it.
TEST_F(AccessTest, AJobThatComesBeforeIsOnesOwnFirst) {
  ASSERT_TRUE(Submit("a1", "ann", ann_).ok());
  ASSERT_TRUE(Submit("b1", "bob", bob_).ok());
  ASSERT_TRUE(SubmitAfter("a2", "ann", ann_, "mlp").ok());
  EXPECT_THAT(state_.jobs.at("a2").after, ElementsAre("a1"));
  // Another's is found by its id, as all see it in lists.
  ASSERT_TRUE(SubmitAfter("a3", "ann", ann_, "b1").ok());
  EXPECT_THAT(state_.jobs.at("a3").after, ElementsAre("b1"));
}

TEST_F(AccessTest, WhyAnothersJobHasNotSucceededIsNotSaid) {
  ASSERT_TRUE(Submit("b1", "bob", bob_).ok());
  ASSERT_TRUE(Do(CancelRequested{.job_id = "b1", .by = bob_}).reply.ok());
  ASSERT_TRUE(state_.jobs.at("b1").final());
  state_.jobs.at("b1").reason = "cannot open /home/bob/secret.npy";
  const std::string hidden(SubmitAfter("a1", "ann", ann_, "b1").message());
  EXPECT_EQ(hidden, "job b1, which has to succeed before, has not");
  EXPECT_THAT(std::string(SubmitAfter("b2", "bob", bob_, "b1").message()),
              HasSubstr("has not: cannot open /home/bob/secret.npy"));
  EXPECT_THAT(std::string(SubmitAfter("o1", "olga", olga_, "b1").message()),
              HasSubstr("has not: cannot open /home/bob/secret.npy"));
}

TEST_F(AccessTest, RevokingEndsTheSessionsOfANode) {
  ASSERT_TRUE(Create("t1", "node7", ROLE_JOIN, adam_).ok());
  AgentSaid join;
  join.session = 3;
  join.token_id = "t1";
  join.message.mutable_hello()->set_node_id("n1");
  join.message.mutable_hello()->set_incarnation("n1-1");
  join.message.mutable_hello()->set_protocol_version(1);
  Do(join);
  const Effects effects = Do(TokenRevoked{"t1", adam_});
  ASSERT_EQ(effects.to_agents.size(), 1u);
  EXPECT_EQ(effects.to_agents[0].session, 3u);
  EXPECT_TRUE(effects.to_agents[0].close);
  EXPECT_EQ(effects.to_agents[0].command.rejected().kind(), Rejected::REVOKED);
}

}  // namespace
}  // namespace lockstep::coordinator
