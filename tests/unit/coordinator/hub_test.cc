// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "coordinator/core/context.h"
#include "coordinator/core/tokens.h"
#include "coordinator/service/beginning.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Keeps rows, or refuses to.
class FullStore : public Store {
 public:
  absl::StatusOr<std::vector<StoredRow>> GetAll() override { return rows_->GetAll(); }
  absl::StatusOr<int64_t> PutBatch(absl::Span<const Put> rows) override {
    if (full) return absl::ResourceExhaustedError("no space left on device");
    return rows_->PutBatch(rows);
  }
  bool full = false;

 private:
  std::unique_ptr<Store> rows_ = MakeMemoryStore();
};

class BrokenStore : public Store {
 public:
  absl::StatusOr<std::vector<StoredRow>> GetAll() override { return std::vector<StoredRow>(); }
  absl::StatusOr<int64_t> PutBatch(absl::Span<const Put>) override {
    return absl::UnavailableError("disk I/O error");
  }
};

// Writes when it is let, and counts.
class SlowStore : public Store {
 public:
  absl::StatusOr<std::vector<StoredRow>> GetAll() override { return rows_->GetAll(); }
  absl::StatusOr<int64_t> PutBatch(absl::Span<const Put> rows) override {
    absl::MutexLock lock(&mu_);
    ++batches_;
    mu_.Await(absl::Condition(&go_));
    if (fail_) return absl::ResourceExhaustedError("no space left on device");
    return rows_->PutBatch(rows);
  }
  void Hold() { Set(false, false); }
  void Fail() { Set(true, true); }
  void LetGo() { Set(true, false); }
  void AwaitWrite() {
    absl::MutexLock lock(&mu_);
    const auto writes = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return batches_ > 0; };
    mu_.Await(absl::Condition(&writes));
  }
  int batches() {
    absl::MutexLock lock(&mu_);
    return batches_;
  }

 private:
  void Set(bool go, bool fail) {
    absl::MutexLock lock(&mu_);
    go_ = go;
    fail_ = fail;
  }
  absl::Mutex mu_;
  std::unique_ptr<Store> rows_ = MakeMemoryStore();
  bool go_ ABSL_GUARDED_BY(mu_) = true;
  bool fail_ ABSL_GUARDED_BY(mu_) = false;
  int batches_ ABSL_GUARDED_BY(mu_) = 0;
};

// What was answered, in order. (absl::BlockingCounter orders nothing for ThreadSanitizer.)
class Answers {
 public:
  void Add(const std::string& name) {
    absl::MutexLock lock(&mu_);
    names_.push_back(name);
  }
  std::vector<std::string> Await(size_t count) {
    const auto there = [this, count]()
                           ABSL_SHARED_LOCKS_REQUIRED(mu_) { return names_.size() >= count; };
    absl::MutexLock lock(&mu_, absl::Condition(&there));
    return names_;
  }

 private:
  absl::Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
};

class Agent : public Outlet<ToAgent> {
 public:
  void Enqueue(ToAgent message) override { told.push_back(message.command); }
  void WriteNext() override {}
  std::vector<AgentCommand> told;
};

SubmitJobRequest Request() {
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(2);
  request.mutable_spec()->mutable_train();
  request.mutable_spec()->mutable_restart()->set_max_restarts(0);  // a death ends it
  return request;
}

absl::StatusOr<SubmitJobResponse> Submit(Hub& hub) {
  absl::Notification there;
  Hub::Reply reply;
  hub.Submit(Request(), [&](Hub::Reply given) {
    reply = std::move(given);
    there.Notify();
  });
  there.WaitForNotification();
  if (!reply.status.ok()) return reply.status;
  return reply.submitted;
}

int Listed(Hub& hub) {
  ListJobsRequest all;
  all.set_include_ended(true);
  return hub.List(all)->jobs_size();
}

absl::StatusOr<Hub::Next> NextEvent(Hub& hub, const std::string& job, int64_t after) {
  FollowerPlace place(after);
  return hub.NextEvent(job, place, /*logs=*/true);
}

AgentMessage Hello() {
  AgentMessage message;
  message.mutable_hello()->set_node_id("n");
  message.mutable_hello()->set_slots(2);
  message.mutable_hello()->set_protocol_version(1);
  return message;
}

TEST(HubTest, TellsNothingThatIsNotSaved) {
  FakeClock clock;
  FullStore store;
  Hub hub(&clock, &store, {});
  auto agent = std::make_shared<Agent>();
  const SessionId session = hub.AddAgent(agent);
  ASSERT_TRUE(hub.Handle(AgentSaid{session, Hello()}).status.ok());
  const size_t before = agent->told.size();

  store.full = true;
  const auto lost = Submit(hub);
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(lost.status().message(), HasSubstr("journal"));
  EXPECT_EQ(agent->told.size(), before);
  EXPECT_EQ(Listed(hub), 0);

  store.full = false;
  clock.Advance(Outbox::kRetry);
  hub.Handle(Tick{});
  const auto accepted = Submit(hub);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  ASSERT_GT(agent->told.size(), before);
  EXPECT_EQ(agent->told.back().desired().workers_size(), 2);

  // A death that cannot be written down is not acknowledged before it is.
  AgentMessage exited;
  exited.mutable_exited()->set_job_id(accepted->job_id());
  exited.mutable_exited()->set_worker_incarnation(accepted->job_id() + ".0.1");
  exited.mutable_exited()->set_signal(9);
  const size_t then = agent->told.size();
  store.full = true;
  EXPECT_FALSE(hub.Handle(AgentSaid{session, exited}).status.ok());
  clock.Advance(Outbox::kRetry);
  EXPECT_FALSE(hub.Handle(Tick{}).status.ok());
  EXPECT_EQ(agent->told.size(), then);
  store.full = false;
  clock.Advance(Outbox::kRetry);
  EXPECT_TRUE(hub.Handle(Tick{}).status.ok());
  ASSERT_EQ(agent->told.size(), then + 2);
  EXPECT_TRUE(agent->told[then].has_acknowledged());
  EXPECT_EQ(agent->told[then + 1].desired().kill_jobs_size(), 1);
}

// Steps go on while a batch is written; what they make is one batch more, told in their order.
TEST(HubTest, StepsDuringAWriteShareTheNextOne) {
  FakeClock clock;
  SlowStore store;
  Hub hub(&clock, &store, {});
  auto agent = std::make_shared<Agent>();
  const SessionId session = hub.AddAgent(agent);
  store.Hold();
  hub.Post(AgentSaid{session, Hello()});
  store.AwaitWrite();
  Answers answers;
  for (const char* job : {"a", "b"}) {
    hub.Post(Submitted{job, Request()}, [&, job](Hub::Reply reply) {
      EXPECT_TRUE(reply.status.ok());
      answers.Add(job);
    });
  }
  hub.Post(CancelRequested{"a", true}, [&](Hub::Reply reply) { answers.Add("cancel"); });
  EXPECT_TRUE(agent->told.empty());
  EXPECT_TRUE(answers.Await(0).empty());
  store.LetGo();
  EXPECT_THAT(answers.Await(3), ::testing::ElementsAre("a", "b", "cancel"));
  EXPECT_EQ(store.batches(), 3);  // the hello, the requests, what they led to
}

TEST(HubTest, AFullDiskRefusesTheRequestsBehindItToo) {
  FakeClock clock;
  SlowStore store;
  Hub hub(&clock, &store, {});
  store.Hold();
  Answers answers;
  for (const char* job : {"a", "b"}) {
    hub.Post(Submitted{job, Request()}, [&, job](Hub::Reply reply) {
      EXPECT_EQ(reply.status.code(), absl::StatusCode::kResourceExhausted);
      answers.Add(job);
    });
    store.AwaitWrite();
  }
  store.Fail();
  answers.Await(2);
  EXPECT_EQ(Listed(hub), 0);
  store.LetGo();
  clock.Advance(Outbox::kRetry);
  hub.Handle(Tick{});
  EXPECT_TRUE(Submit(hub).ok());
}

TEST(HubTest, SaysOnceThatTheJournalHasFailedForGood) {
  FakeClock clock;
  BrokenStore store;
  Answers reasons;
  Hub hub(&clock, &store, {},
          [&](const absl::Status& why) { reasons.Add(std::string(why.message())); });
  EXPECT_EQ(Submit(hub).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Submit(hub).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(reasons.Await(1), ::testing::ElementsAre("disk I/O error"));
}

TEST(HubTest, EventsOfALaterCoordinatorHaveHigherNumbers) {
  FakeClock clock;
  FullStore store;
  std::string id;
  int64_t last = 0;
  std::vector<Row> rows;
  {
    Hub hub(&clock, &store, {});
    id = Submit(hub)->job_id();
    while (const auto event = NextEvent(hub, id, last)->event) last = event->sequence();
    EXPECT_GT(last, 0);
  }
  const std::vector<StoredRow> stored = *store.GetAll();
  for (const StoredRow& row : stored) rows.push_back({row.key, row.value});
  Hub hub(&clock, &store, {{"c", 2}, *Restore(rows, Options(), clock.Now()), {}});
  const auto next = NextEvent(hub, id, last);
  ASSERT_TRUE(next.ok());
  ASSERT_NE(next->event, nullptr);
  EXPECT_GT(next->event->sequence(), last);
}

TEST(HubTest, FollowersOfAnEarlierCoordinatorsJobLearnWhereItStands) {
  FakeClock clock;
  FullStore store;
  std::string id;
  {
    Hub hub(&clock, &store, {});
    id = Submit(hub)->job_id();
  }
  std::vector<Row> rows;
  const std::vector<StoredRow> stored = *store.GetAll();
  for (const StoredRow& row : stored) rows.push_back({row.key, row.value});
  Hub hub(&clock, &store, {{"c", 1}, *Restore(rows, Options(), clock.Now()), {}});
  const auto next = NextEvent(hub, id, 0);
  ASSERT_TRUE(next.ok());
  ASSERT_NE(next->event, nullptr);
  EXPECT_EQ(next->event->state().state(), PENDING);
  EXPECT_THAT(next->event->state().reason(), HasSubstr("needs 2 slots"));
}

TEST(HubTest, ANodeWasNotHeardBeforeTheCoordinatorWasThere) {
  FakeClock clock;
  FullStore store;
  {
    Hub hub(&clock, &store, *Begin(&store, Options(), clock.Now()));
    ASSERT_TRUE(
        hub.Handle(AgentSaid{hub.AddAgent(std::make_shared<Agent>()), Hello()}).status.ok());
    clock.Advance(absl::Seconds(7));
    EXPECT_EQ(hub.Cluster().nodes(0).silent_seconds(), 7);
  }
  Hub hub(&clock, &store, *Begin(&store, Options(), clock.Now()));
  clock.Advance(absl::Hours(1));
  ASSERT_EQ(hub.Cluster().nodes_size(), 1);
  EXPECT_FALSE(hub.Cluster().nodes(0).has_silent_seconds());
}

TEST(HubTest, NamesTheWorkdirsOfJobsThatHaveNotEnded) {
  FakeClock clock;
  FullStore store;
  Hub hub(&clock, &store, {});
  for (const char* workdir : {"/waits", "/ends"}) {
    SubmitJobRequest request = Request();
    request.mutable_spec()->set_name(workdir + 1);
    request.mutable_spec()->set_workdir(workdir);
    absl::Notification there;
    hub.Submit(request, [&](const Hub::Reply&) { there.Notify(); });
    there.WaitForNotification();
  }
  EXPECT_THAT(hub.Workdirs(), UnorderedElementsAre("/ends", "/waits"));
  ASSERT_TRUE(hub.Handle(CancelRequested{"ends", false, Requester()}).status.ok());
  EXPECT_THAT(hub.Workdirs(), UnorderedElementsAre("/waits"));
}

// The machine was suspended for two hours.
TEST(HubTest, ATokenEndsByTheTimeOfDay) {
  FakeClock clock, wall;
  FullStore store;
  Hub hub(&clock, &store, {}, nullptr, nullptr, &wall);
  TokenCreated event;
  event.record.set_sha256(TokenHash("secret"));
  event.record.mutable_by()->set_role(ROLE_ADMIN);
  TokenInfo& info = *event.record.mutable_info();
  info.set_id("t1");
  info.set_user("ann");
  info.set_role(ROLE_SUBMIT);
  *info.mutable_expires() = ToProto(wall.Now() + absl::Hours(1));
  ASSERT_TRUE(hub.Handle(event).status.ok());
  const std::string name = absl::BytesToHexString(TokenHash("secret"));
  EXPECT_TRUE(hub.WhoShows("secret").ok());
  EXPECT_TRUE(hub.EndOfToken(name).has_value());
  wall.Advance(absl::Hours(2));
  EXPECT_TRUE(absl::IsUnauthenticated(hub.WhoShows("secret").status()));
  EXPECT_FALSE(hub.EndOfToken(name).has_value());
}

// A coordinator begins anew when there was a later one: nobody's mere word makes it do so.
TEST(HubTest, WhoClaimsALaterCoordinatorShowsIt) {
  FakeClock clock;
  std::unique_ptr<Store> journal = MakeMemoryStore();
  FullStore copy;  // from before the second coordinator
  ASSERT_TRUE(Begin(journal.get(), Options(), clock.Now()).ok());
  std::vector<Put> puts;
  const std::vector<StoredRow> rows = *journal->GetAll();
  for (const StoredRow& row : rows) puts.push_back({row.key, row.value});
  ASSERT_TRUE(copy.PutBatch(puts).ok());
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(Begin(journal.get(), Options(), clock.Now()).ok());
  const Speaker seventh = Begin(journal.get(), Options(), clock.Now())->speaker;
  ASSERT_EQ(seventh.epoch, 8);

  std::vector<int64_t> later;
  Hub hub(&clock, &copy, *Begin(&copy, Options(), clock.Now()), nullptr,
          [&](int64_t epoch) { later.push_back(epoch); });
  const SessionId session = hub.AddAgent(std::make_shared<Agent>());
  AgentSaid said{session, Hello(), "", "t1", "ann"};
  AgentHello& hello = *said.message.mutable_hello();
  hello.set_cluster_id(seventh.cluster_id);
  hello.set_epoch(seventh.epoch);
  hub.Handle(said);
  hello.set_epoch(seventh.epoch + 1);
  hello.set_epoch_proof(seventh.epoch_proof);
  hub.Handle(said);
  hello.set_epoch(seventh.epoch);
  hello.set_epoch_proof(std::string(seventh.epoch_proof.size(), 'x'));
  hub.Handle(said);
  EXPECT_TRUE(later.empty()) << "that is no proof";
  hello.set_epoch_proof(seventh.epoch_proof);
  hub.Handle(said);
  EXPECT_EQ(later, std::vector<int64_t>({8}));
  hello.set_epoch(2);
  hub.Handle(said);
  EXPECT_EQ(later.size(), 1u) << "this one is the second";
}

// An agent of an earlier version has no proof.
TEST(HubTest, AnAdministratorsAgentIsBelieved) {
  FakeClock clock;
  FullStore store;
  std::vector<int64_t> later;
  Beginning beginning = *Begin(&store, Options(), clock.Now());
  const std::string cluster = beginning.speaker.cluster_id;
  Hub hub(&clock, &store, std::move(beginning), nullptr,
          [&](int64_t epoch) { later.push_back(epoch); });
  AgentSaid said{hub.AddAgent(std::make_shared<Agent>()), Hello()};
  said.message.mutable_hello()->set_cluster_id(cluster);
  said.message.mutable_hello()->set_epoch(9);
  hub.Handle(said);
  EXPECT_EQ(later, std::vector<int64_t>({9}));
}

TEST(HubTest, AForgottenJobIsNotThereForFollowersEither) {
  FakeClock clock;
  FullStore store;
  State state;
  state.options.keep_ended = 1;
  Hub hub(&clock, &store, {{"c", 1}, std::move(state), {}});
  const std::string first = Submit(hub)->job_id();
  ASSERT_TRUE(hub.Handle(CancelRequested{first, true}).status.ok());
  EXPECT_TRUE(NextEvent(hub, first, 0).ok());
  clock.Advance(absl::Minutes(6));
  const std::string second = Submit(hub)->job_id();
  ASSERT_TRUE(hub.Handle(CancelRequested{second, true}).status.ok());
  clock.Advance(absl::Seconds(2));
  hub.Handle(Tick{});
  EXPECT_TRUE(absl::IsNotFound(NextEvent(hub, first, 0).status()));
  EXPECT_TRUE(absl::IsNotFound(hub.Describe(first).status()));
  EXPECT_TRUE(NextEvent(hub, second, 0).ok());
  const std::vector<StoredRow> rows = *store.GetAll();
  for (const StoredRow& row : rows) EXPECT_THAT(row.key, testing::Not(HasSubstr(first)));
}

}  // namespace
}  // namespace lockstep::coordinator
