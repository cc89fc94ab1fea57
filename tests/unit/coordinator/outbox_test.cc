// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SessionId kAgent = 1;
const absl::Status kFull = absl::ResourceExhaustedError("'/state/journal.db': disk is full");

SubmitJobRequest Request(const std::string& id = "") {
  SubmitJobRequest request;
  request.mutable_spec()->set_name("mlp");
  request.mutable_spec()->mutable_resources()->set_nodes(1);
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(2);
  request.mutable_spec()->mutable_train();
  request.mutable_spec()->mutable_restart()->set_max_restarts(0);
  request.set_request_id(id);
  return request;
}

Event Hello() {
  AgentSaid said{kAgent, {}};
  said.message.mutable_hello()->set_node_id("n");
  said.message.mutable_hello()->set_slots(4);
  said.message.mutable_hello()->set_protocol_version(1);
  return said;
}

Event Exited(const std::string& incarnation) {
  AgentSaid said{kAgent, {}};
  said.message.mutable_exited()->set_job_id("job");
  said.message.mutable_exited()->set_worker_incarnation(incarnation);
  said.message.mutable_exited()->set_signal(9);
  return said;
}

// A journal of rows beside an outbox, whose writes the test lets go or fail, and what was said.
class OutboxTest : public ::testing::Test {
 protected:
  void Handle(const Event& event, int64_t ticket = 0) { Take(outbox_.Handle(event, ticket, now_)); }
  void Wake() { Take(outbox_.Wake(now_)); }
  void Pass(absl::Duration time) {
    now_ += time;
    Wake();
  }
  // All writes that are asked for succeed.
  void Save() {
    while (!writing_.empty()) Written(absl::OkStatus());
  }
  void Written(const absl::Status& status) {
    const std::vector<Row> rows = std::exchange(writing_, {});
    for (const Row& row : rows) {
      if (!status.ok()) continue;
      if (row.erased) {
        journal_.erase(row.key);
      } else {
        journal_[row.key] = row.value;
      }
    }
    Take(outbox_.Written(status, now_));
  }
  void Take(Outgoing out) {
    if (!out.write.empty()) {
      EXPECT_THAT(writing_, IsEmpty()) << "one write at a time";
      writing_ = std::move(out.write);
    }
    for (Answer& answer : out.answers) answers_.emplace(answer.ticket, std::move(answer));
    for (ToAgent& message : out.to_agents) told_.push_back(std::move(message.command));
    for (ToWorker& message : out.to_workers) to_workers_.push_back(std::move(message));
    for (Append& append : out.events) events_.push_back(std::move(append.event));
  }
  int AskedRows() const {
    int rows = 0;
    for (const auto& [key, value] : journal_) rows += IsRequestRow(key) ? 1 : 0;
    return rows;
  }
  // A running agent and a job of two workers there.
  void SubmitJob() {
    Handle(Hello());
    Handle(Submitted{"job", Request()}, 1);
    Save();
    ASSERT_TRUE(answers_.at(1).status.ok()) << answers_.at(1).status;
    told_.clear();
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  Outbox outbox_{{"cluster", 7}, State()};
  std::map<std::string, std::string> journal_;
  std::vector<Row> writing_;
  std::map<int64_t, Answer> answers_;
  std::vector<AgentCommand> told_;
  std::vector<ToWorker> to_workers_;
  std::vector<JobEvent> events_;
};

TEST_F(OutboxTest, ARequestIsWrittenDownThenCarriedOutThenAnswered) {
  Handle(Hello());
  Save();
  Handle(Submitted{"job", Request()}, 1);
  ASSERT_EQ(writing_.size(), 1u);
  EXPECT_TRUE(IsRequestRow(writing_[0].key));
  EXPECT_EQ(outbox_.state().jobs.count("job"), 0u);
  EXPECT_TRUE(outbox_.KnowsJob("job"));
  Written(absl::OkStatus());
  EXPECT_EQ(outbox_.state().jobs.count("job"), 1u);
  EXPECT_THAT(answers_, IsEmpty());
  Save();
  EXPECT_TRUE(answers_.at(1).status.ok());
  EXPECT_EQ(answers_.at(1).submitted.job_id(), "job");
  EXPECT_EQ(AskedRows(), 0);
}

TEST_F(OutboxTest, ADrainIsWrittenDownBeforeItIsCarriedOut) {
  Handle(Hello());
  Save();
  Handle(DrainRequested{"n", "disk", "ann"}, 1);
  ASSERT_EQ(writing_.size(), 1u);
  EXPECT_THAT(writing_[0].key, HasSubstr("/drain"));
  EXPECT_FALSE(outbox_.state().nodes.at("n").drain.has_value());
  // It is on the disk, and nothing else is: the next coordinator carries it out.
  std::vector<StoredRequest> requests = {*ParseRequestRow(writing_[0])};
  State state;
  state.nodes["n"].id = "n";
  Outbox next({"cluster", 8}, std::move(state));
  const Outgoing begun = next.Begin(requests, now_);
  EXPECT_EQ(next.state().nodes.at("n").drain->reason, "disk");
  EXPECT_FALSE(begun.write.empty());
  Save();
  EXPECT_TRUE(answers_.at(1).status.ok());
  EXPECT_EQ(AskedRows(), 0);
  Handle(UndrainRequested{"n"}, 2);
  Written(kFull);
  EXPECT_EQ(answers_.at(2).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(outbox_.state().nodes.at("n").drain.has_value()) << "a refused one never happens";
}

TEST_F(OutboxTest, EveryCommandSaysWhoSpeaks) {
  SubmitJob();
  Handle(CancelRequested{"job", true}, 2);
  Save();
  ASSERT_FALSE(told_.empty());
  for (const AgentCommand& command : told_) {
    EXPECT_EQ(command.cluster_id(), "cluster");
    EXPECT_EQ(command.epoch(), 7);
  }
}

// A worker that has obeyed nobody is not bound to a coordinator by being cut off by it.
TEST_F(OutboxTest, TheEndOfAStreamAloneIsNothingToObey) {
  WorkerSaid said{kAgent + 1, {}};
  said.message.set_job_id("unknown");
  said.message.set_incarnation("unknown.0.1");
  said.message.mutable_hello()->set_protocol_version(1);
  Handle(said);
  Save();
  ASSERT_EQ(to_workers_.size(), 1);
  EXPECT_TRUE(to_workers_[0].close);
  EXPECT_EQ(to_workers_[0].command.command_case(), WorkerCommand::COMMAND_NOT_SET);
  EXPECT_EQ(to_workers_[0].command.epoch(), 0);
  EXPECT_EQ(to_workers_[0].command.cluster_id(), "");
}

TEST_F(OutboxTest, WhatAFullDiskRefusesNeverHappens) {
  SubmitJob();
  // The first request finds it out, the later ones are refused without a write.
  Handle(CancelRequested{"job", true}, 2);
  Written(kFull);
  Handle(ScaleRequested{"job", 1}, 3);
  Handle(Submitted{"other", Request()}, 4);
  for (const int64_t ticket : {2, 3, 4}) {
    ASSERT_EQ(answers_.count(ticket), 1u) << ticket;
    EXPECT_EQ(answers_.at(ticket).status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(answers_.at(ticket).status.message()), HasSubstr("/state/journal.db"));
  }
  EXPECT_THAT(writing_, IsEmpty());
  Pass(absl::Seconds(1));
  Save();
  EXPECT_TRUE(outbox_.trouble().ok());
  EXPECT_FALSE(outbox_.state().jobs.at("job").ending.has_value());
  EXPECT_FALSE(outbox_.KnowsJob("other"));
  EXPECT_EQ(AskedRows(), 0);
  Handle(CancelRequested{"job", true}, 5);
  Save();
  EXPECT_TRUE(answers_.at(5).status.ok());
}

TEST_F(OutboxTest, WhatWasWrittenDownIsAcceptedThoughTheDiskFillsUpBeforeItIsDone) {
  Handle(Hello());
  Save();
  Handle(Submitted{"job", Request()}, 1);
  Written(absl::OkStatus());  // the request
  told_.clear();
  Written(kFull);  // what it led to
  EXPECT_TRUE(answers_.at(1).status.ok());
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_EQ(AskedRows(), 1);
  Pass(absl::Seconds(1));
  Save();
  ASSERT_FALSE(told_.empty());
  EXPECT_EQ(told_.back().desired().workers_size(), 2);
  EXPECT_EQ(AskedRows(), 0);
}

// It ends between the request's row and what follows from it.
TEST_F(OutboxTest, TheNextCoordinatorCarriesOutWhatWasWrittenDown) {
  Handle(Submitted{"job", Request()}, 1);
  Written(absl::OkStatus());
  ASSERT_EQ(AskedRows(), 1);
  std::vector<StoredRequest> requests;
  for (const auto& [key, value] : journal_) {
    if (IsRequestRow(key)) requests.push_back(*ParseRequestRow({key, value}));
  }
  Outbox next({"cluster", 8}, State());
  Outgoing out = next.Begin(requests, now_);
  EXPECT_EQ(next.state().jobs.count("job"), 1u);
  bool erased = false;
  for (const Row& row : out.write) erased |= row.erased && row.key == requests[0].key;
  EXPECT_TRUE(erased) << "its row goes with what it led to";
}

TEST_F(OutboxTest, RequestsComeBackAsTheyWere) {
  for (const Event& event :
       {Event(Submitted{"abc", Request("again")}), Event(CancelRequested{"x/y", true}),
        Event(ScaleRequested{"x", 3}), Event(DrainRequested{"n", "why", "ann"}),
        Event(UndrainRequested{"n"}), Event(HoldRequested{"x", true})}) {
    const auto stored = ParseRequestRow(RequestRow(12, event));
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(stored->number, 12);
    EXPECT_EQ(stored->event.index(), event.index());
  }
  EXPECT_EQ(
      std::get<CancelRequested>(ParseRequestRow(RequestRow(1, CancelRequested{"x/y", true}))->event)
          .job_id,
      "x/y");
  EXPECT_EQ(ParseRequestRow({"asked/1/steal", ""}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseRequestRow({"asked/1/scale", "\xff"}).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(OutboxTest, ADeathThatCannotBeWrittenIsToldLater) {
  SubmitJob();
  Handle(Exited("job.0.1"));
  Written(kFull);
  EXPECT_THAT(told_, IsEmpty());
  Wake();
  EXPECT_THAT(writing_, IsEmpty()) << "not before it is time";
  Pass(Outbox::kRetry);
  Written(kFull);
  Pass(Outbox::kRetry);
  Save();
  ASSERT_EQ(told_.size(), 2u);
  EXPECT_TRUE(told_[0].has_acknowledged());
  EXPECT_EQ(told_[1].desired().kill_jobs_size(), 1);
}

// From 100 ms on until all that was decided is said, however long, and however often the disk says
// that it is full: the core knows that its word has not reached anybody.
TEST_F(OutboxTest, TheCoreIsToldOfAWaitAndOfItsEnd) {
  SubmitJob();
  Handle(Exited("job.0.1"));
  Pass(Outbox::kHeldAfter - absl::Milliseconds(1));
  EXPECT_FALSE(outbox_.holding());
  EXPECT_LE(outbox_.wake_at(), now_ + absl::Milliseconds(1));
  Pass(absl::Milliseconds(1));
  EXPECT_TRUE(outbox_.holding());
  Pass(absl::Seconds(60));
  Written(kFull);
  Pass(absl::Seconds(1));
  EXPECT_TRUE(outbox_.holding());
  Save();
  EXPECT_FALSE(outbox_.holding());
  EXPECT_FALSE(told_.empty());
  Pass(absl::Seconds(1));
  EXPECT_FALSE(outbox_.holding());
}

TEST_F(OutboxTest, AJournalThatFailsOtherwiseEndsTheCoordinator) {
  SubmitJob();
  Handle(CancelRequested{"job", true}, 2);
  Written(absl::UnavailableError("'/state/journal.db': disk I/O error"));
  EXPECT_TRUE(outbox_.broken());
  EXPECT_THAT(std::string(outbox_.trouble().message()), HasSubstr("I/O error"));
  EXPECT_EQ(answers_.at(2).status.code(), absl::StatusCode::kUnavailable);
  Handle(Exited("job.0.1"));
  Handle(ScaleRequested{"job", 1}, 3);
  Pass(absl::Hours(1));
  EXPECT_EQ(answers_.at(3).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_THAT(writing_, IsEmpty());
  EXPECT_EQ(outbox_.wake_at(), absl::InfiniteFuture());
}

TEST_F(OutboxTest, ADiskThatDoesNotAnswerIsNotGivenMoreRequests) {
  SubmitJob();
  Handle(Exited("job.0.1"));
  ASSERT_FALSE(writing_.empty());
  Handle(ScaleRequested{"job", 1}, 2);  // shares the next write
  Pass(Outbox::kSlowAfter);
  Handle(ScaleRequested{"job", 1}, 3);
  EXPECT_EQ(answers_.count(2), 0u);
  EXPECT_EQ(answers_.at(3).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answers_.at(3).status.message()), HasSubstr("not answered for 1 s"));
  Save();
  EXPECT_EQ(answers_.count(2), 1u);
}

// A job of one worker, which has failed at once when that one dies.
SubmitJobRequest OneWorker() {
  SubmitJobRequest request = Request();
  request.mutable_spec()->mutable_resources()->set_nproc_per_node(1);
  return request;
}

class OutboxShowsTest : public OutboxTest {
 protected:
  void Look(int64_t ticket) { Take(outbox_.AwaitSaved(ticket, now_)); }
  // A job that has just failed, which is being written.
  void FailJob() {
    Handle(Hello());
    Handle(Submitted{"job", OneWorker()}, 1);
    Save();
    Handle(Exited("job.0.1"));
    ASSERT_EQ(outbox_.state().jobs.at("job").state, FAILED);
    ASSERT_FALSE(writing_.empty());
  }
  absl::Status Answered(int64_t ticket) { return answers_.at(ticket).status; }
};

TEST_F(OutboxShowsTest, AnEndIsShownWhenItIsWritten) {
  FailJob();
  Look(2);
  EXPECT_EQ(answers_.count(2), 0u);
  Written(absl::OkStatus());
  EXPECT_TRUE(Answered(2).ok());
  Save();
  Look(3);
  EXPECT_TRUE(Answered(3).ok()) << "nothing is left to write";
}

TEST_F(OutboxShowsTest, WhatComesDuringAWriteIsShownAfterTheNext) {
  FailJob();
  AgentSaid other{2, {}};
  other.message.mutable_hello()->set_node_id("m");
  other.message.mutable_hello()->set_protocol_version(1);
  Handle(other);
  Look(2);
  Written(absl::OkStatus());
  EXPECT_EQ(answers_.count(2), 0u);
  Written(absl::OkStatus());
  EXPECT_TRUE(Answered(2).ok());
}

TEST_F(OutboxShowsTest, ARequestThatIsNotCarriedOutYetShowsNothing) {
  Handle(Submitted{"job", Request()}, 1);
  ASSERT_FALSE(writing_.empty());
  Look(2);
  EXPECT_TRUE(Answered(2).ok());
}

TEST_F(OutboxShowsTest, WhatWaitsToBeSettledIsWaitedForToo) {
  Handle(Hello());
  Handle(Submitted{"job", OneWorker()}, 1);
  Save();
  State state = outbox_.state();
  state.options.settle_spacing = absl::Hours(1);
  Outbox spaced({"cluster", 8}, std::move(state));
  Take(spaced.Handle(Exited("job.0.1"), 0, now_));
  ASSERT_THAT(writing_, IsEmpty());
  Take(spaced.AwaitSaved(2, now_));
  EXPECT_FALSE(writing_.empty());
  EXPECT_EQ(answers_.count(2), 0u);
}

TEST_F(OutboxShowsTest, ADiskThatIsFullForLongIsNoneThatDoesNotAnswer) {
  FailJob();
  Written(kFull);
  for (int i = 0; i < 100; ++i) {
    Pass(Outbox::kRetry);
    Written(kFull);
  }
  Look(2);
  EXPECT_EQ(Answered(2).code(), absl::StatusCode::kResourceExhausted) << Answered(2);
  EXPECT_THAT(std::string(Answered(2).message()), HasSubstr("disk is full"));
}

TEST_F(OutboxShowsTest, AFullDiskIsNamedToWhoLooks) {
  FailJob();
  Look(2);
  Written(kFull);
  EXPECT_EQ(Answered(2).code(), absl::StatusCode::kResourceExhausted);
  Look(3);
  EXPECT_EQ(answers_.count(3), 0u) << "there may be room by now";
  Pass(Outbox::kRetry);
  Written(kFull);
  EXPECT_EQ(Answered(3).code(), absl::StatusCode::kResourceExhausted);
  Look(4);
  Pass(Outbox::kRetry);
  Save();
  EXPECT_TRUE(Answered(4).ok());
}

TEST_F(OutboxShowsTest, WhoLooksWaitsASecondForADiskThatStandsStill) {
  FailJob();
  Look(2);
  Pass(Outbox::kSlowAfter - absl::Milliseconds(1));
  EXPECT_EQ(answers_.count(2), 0u);
  EXPECT_LE(outbox_.wake_at(), now_ + absl::Milliseconds(1));
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(Answered(2).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(Answered(2).message()), HasSubstr("not answered for 1 s"));
  Look(3);
  EXPECT_EQ(Answered(3).code(), absl::StatusCode::kDeadlineExceeded) << "it is known by now";
  Save();
  Look(4);
  EXPECT_TRUE(Answered(4).ok());
}

TEST_F(OutboxShowsTest, AJournalThatHasFailedShowsNothing) {
  FailJob();
  Look(2);
  Written(absl::UnavailableError("disk I/O error"));
  EXPECT_EQ(Answered(2).code(), absl::StatusCode::kUnavailable);
  Look(3);
  EXPECT_EQ(Answered(3).code(), absl::StatusCode::kUnavailable);
}

// Lines and progress follow from no row, so followers go on seeing them.
TEST_F(OutboxTest, LinesOfWorkersWaitForNoJournal) {
  SubmitJob();
  Handle(Exited("job.0.1"));
  events_.clear();
  AgentSaid line{kAgent, {}};
  line.message.mutable_log()->set_job_id("job");
  line.message.mutable_log()->mutable_lines()->add_lines("hello");
  Handle(line);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].log().lines(0), "hello");
}

TEST_F(OutboxTest, WhatPilesUpIsBounded) {
  Batch batch;
  for (int i = 0; i < 100000; ++i) {
    Effects effects;
    effects.rows.push_back({absl::StrCat("row/", i % 3), std::to_string(i)});
    effects.to_agents.push_back({1 + i % 2, {}});
    effects.to_agents.back().command.mutable_desired()->set_revision(i);
    effects.to_agents.push_back({1, {}});
    effects.to_agents.back().command.mutable_acknowledged()->add_worker_incarnations(
        absl::StrCat("w", i % 5));
    effects.to_workers.push_back({7, {}});
    effects.to_workers.back().command.mutable_abort()->set_generation(i);
    effects.events.push_back({"job", {}});
    effects.events.back().event.set_notice(std::to_string(i));
    batch.Add(std::move(effects), 0, false, absl::UnixEpoch());
  }
  EXPECT_LT(batch.effects.events.size(), 4 * Batch::kMaxEvents);
  EXPECT_LT(
      batch.effects.rows.size() + batch.effects.to_agents.size() + batch.effects.to_workers.size(),
      8 * Batch::kMaxEvents);
  // Of each kind the newest is there, and every death is acknowledged.
  EXPECT_EQ(batch.effects.events.back().event.notice(), "99999");
  EXPECT_EQ(batch.effects.rows.back().value, "99999");
  EXPECT_EQ(batch.effects.to_workers.back().command.abort().generation(), 99999);
  std::set<std::string> acknowledged;
  for (const ToAgent& message : batch.effects.to_agents) {
    const auto& ids = message.command.acknowledged().worker_incarnations();
    acknowledged.insert(ids.begin(), ids.end());
  }
  EXPECT_THAT(acknowledged, ElementsAre("w0", "w1", "w2", "w3", "w4"));
}

TEST_F(OutboxTest, CommandsForAConnectionThatIsOverAreDropped) {
  SubmitJob();
  Handle(Exited("job.0.1"));
  Handle(Exited("job.1.1"));
  Handle(AgentGone{kAgent});
  Written(absl::OkStatus());
  told_.clear();
  Save();
  EXPECT_THAT(told_, IsEmpty());
}

}  // namespace
}  // namespace lockstep::coordinator
