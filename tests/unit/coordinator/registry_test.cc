// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr size_t kMostLogBytes = size_t{64} << 20;

class Agent : public Outlet<ToAgent> {
 public:
  void Enqueue(ToAgent message) override {
    told.push_back(message.command.epoch());
    closed |= message.close;
  }
  void WriteNext() override {}
  std::vector<int64_t> told;
  bool closed = false;
};

class Worker : public Outlet<ToWorker> {
 public:
  void Enqueue(ToWorker message) override { told.push_back(std::move(message)); }
  void WriteNext() override {}
  std::vector<ToWorker> told;
};

class Follower : public StreamWriter {
 public:
  void WriteNext() override {}
};

ToAgent Say(SessionId session, int64_t number, bool close = false) {
  ToAgent message;
  message.session = session;
  message.command.set_epoch(number);
  message.close = close;
  return message;
}

Append Notice(const std::string& job, const std::string& text) {
  Append append;
  append.job_id = job;
  append.event.set_notice(text);
  return append;
}

Append End(const std::string& job) {
  Append append;
  append.job_id = job;
  append.event.mutable_state()->set_state(SUCCEEDED);
  return append;
}

TEST(RegistryTest, CommandsGoToTheirConnectionsInOrder) {
  Registry registry(0, kMostLogBytes);
  auto first = std::make_shared<Agent>(), second = std::make_shared<Agent>();
  const SessionId a = registry.AddAgent(first), b = registry.AddAgent(second);
  EXPECT_NE(a, b);
  EXPECT_NE(registry.AddWorker(nullptr), b) << "workers and agents share the numbers";
  Outgoing outgoing;
  outgoing.to_agents = {Say(a, 1), Say(b, 2), Say(a, 3, /*close=*/true), Say(99, 4)};
  EXPECT_THAT(registry.Deliver(outgoing), UnorderedElementsAre(first, second));
  EXPECT_THAT(first->told, ElementsAre(1, 3));
  EXPECT_TRUE(first->closed);
  EXPECT_THAT(second->told, ElementsAre(2));
  EXPECT_THAT(outgoing.to_agents, IsEmpty());
}

// It is large, and all members are told the same.
TEST(RegistryTest, AGenerationIsNotCopiedForEachWorker) {
  Registry registry(0, kMostLogBytes);
  auto first = std::make_shared<Worker>(), second = std::make_shared<Worker>();
  const auto generation = std::make_shared<Generation>();
  generation->set_generation(7);
  Outgoing outgoing;
  for (const auto& worker : {first, second}) {
    outgoing.to_workers.push_back({registry.AddWorker(worker), {}, false, generation});
  }
  registry.Deliver(outgoing);
  for (const auto& worker : {first, second}) {
    ASSERT_EQ(worker->told.size(), 1u);
    EXPECT_EQ(worker->told[0].generation, generation);
    EXPECT_EQ(Whole(worker->told[0]).generation().generation(), 7);
  }
}

TEST(RegistryTest, WhoIsGoneHearsNothing) {
  Registry registry(0, kMostLogBytes);
  auto agent = std::make_shared<Agent>();
  const SessionId session = registry.AddAgent(agent);
  EXPECT_FALSE(registry.RemoveWorker(session)) << "it is an agent";
  EXPECT_TRUE(registry.RemoveAgent(session));
  EXPECT_FALSE(registry.RemoveAgent(session)) << "once";
  Outgoing outgoing;
  outgoing.to_agents = {Say(session, 1)};
  EXPECT_THAT(registry.Deliver(outgoing), IsEmpty());
  EXPECT_THAT(agent->told, IsEmpty());
  EXPECT_NE(registry.AddAgent(agent), session) << "a number is given once";
}

TEST(RegistryTest, FollowersOfAJobAreStreamWriterOnceAndReadWhatThereIs) {
  Registry registry(100, kMostLogBytes);
  auto follower = std::make_shared<Follower>(), other = std::make_shared<Follower>();
  registry.AddFollower("j", follower);
  registry.AddFollower("k", other);
  FollowerPlace place(0);
  EXPECT_EQ(registry.NextEvent("j", place, true).status().code(), absl::StatusCode::kNotFound);
  registry.Append("j", Notice("j", "before").event);
  Outgoing outgoing;
  outgoing.events = {Notice("j", "a"), Notice("j", "b")};
  EXPECT_THAT(registry.Deliver(outgoing), ElementsAre(follower));
  std::vector<std::string> read;
  for (auto next = registry.NextEvent("j", place, true); next.ok() && next->event != nullptr;
       next = registry.NextEvent("j", place, true)) {
    EXPECT_FALSE(next->ended);
    read.push_back(next->event->notice());
  }
  EXPECT_THAT(read, ElementsAre("before", "a", "b"));
  EXPECT_EQ(place.sequence, 103);
  outgoing.events = {End("j")};
  registry.Deliver(outgoing);
  EXPECT_NE(registry.NextEvent("j", place, true)->event, nullptr);
  EXPECT_TRUE(registry.NextEvent("j", place, true)->ended);
}

// A job that prints as fast as its follower reads would keep it for ever.
TEST(RegistryTest, WhoDoesNotWaitGetsWhatWasThereWhenItCame) {
  Registry registry(0, kMostLogBytes);
  const auto print = [&registry] {
    JobEvent event;
    event.mutable_log()->add_lines("a line");
    registry.Append("j", std::move(event));
  };
  for (int i = 0; i < 3; ++i) print();
  FollowerPlace place(0, /*waits=*/false);
  for (int64_t i = 1; i <= 3; ++i) {
    const auto next = registry.NextEvent("j", place, /*logs=*/true);
    ASSERT_TRUE(next.ok());
    ASSERT_NE(next->event, nullptr);
    EXPECT_EQ(next->event->sequence(), i);
    EXPECT_FALSE(next->ended);
    print();
  }
  const auto next = registry.NextEvent("j", place, /*logs=*/true);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->event, nullptr);
  EXPECT_TRUE(next->ended);
  // Nor does it wait where there is less than it asks for.
  FollowerPlace states(0, /*waits=*/false);
  EXPECT_TRUE(registry.NextEvent("j", states, /*logs=*/false)->ended);
  FollowerPlace waits(0);
  EXPECT_FALSE(registry.NextEvent("j", waits, /*logs=*/false)->ended);
}

TEST(RegistryTest, FollowersOfAForgottenJobAreToldThatItIsNotThere) {
  Registry registry(0, kMostLogBytes);
  auto follower = std::make_shared<Follower>();
  registry.AddFollower("j", follower);
  registry.Append("j", End("j").event);
  Outgoing outgoing;
  outgoing.forgotten_jobs = {"j"};
  EXPECT_THAT(registry.Deliver(outgoing), ElementsAre(follower));
  FollowerPlace place(0);
  EXPECT_EQ(registry.NextEvent("j", place, true).status().code(), absl::StatusCode::kNotFound);
  registry.RemoveFollower("j", follower);
  outgoing.forgotten_jobs = {"j"};
  EXPECT_THAT(registry.Deliver(outgoing), IsEmpty());
}

}  // namespace
}  // namespace lockstep::coordinator
