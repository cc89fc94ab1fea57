// SPDX-License-Identifier: Apache-2.0
#include "common/life.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

bool WaitForDeath(const LifePage& page, int slot, absl::Duration timeout) {
  const LifePage::Ref slots[] = {{&page, slot}};
  return !LifePage::WaitForAnyDeath(slots, timeout).empty();
}

std::vector<LifePage::Ref> SlotsOf(const LifePage& page, const std::vector<int>& slots) {
  std::vector<LifePage::Ref> refs;
  for (const int slot : slots) refs.push_back({&page, slot});
  return refs;
}

// A child that maps the page anew from its descriptor, takes `slot`, says so and runs `then`.
pid_t StartChild(const LifePage& page, int slot, const std::function<void()>& then) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto mine = LifePage::Open(UniqueFd(::dup(page.fd())));
    if (!mine.ok() || !(*mine)->Take(slot).ok()) ::_exit(9);
    char byte = 1;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(8);
    then();
    ::_exit(0);
  }
  char byte = 0;
  ::close(ready[1]);
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  return pid;
}

void Reap(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
}

TEST(LifePageTest, SlotsAreEmptyAtFirst) {
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ((*page)->Get(0), LifePage::State::kEmpty);
  EXPECT_EQ((*page)->Get(LifePage::kWords - 1), LifePage::State::kEmpty);
  EXPECT_FALSE(WaitForDeath(**page, 3, absl::Milliseconds(2)));
}

TEST(LifePageTest, SigkillIsSeen) {
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  const pid_t pid = StartChild(**page, 7, [] { ::pause(); });
  EXPECT_EQ((*page)->Get(7), LifePage::State::kAlive);
  EXPECT_FALSE(WaitForDeath(**page, 7, absl::Milliseconds(2)));
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(WaitForDeath(**page, 7, kLong));
  EXPECT_EQ((*page)->Get(7), LifePage::State::kDead);
  EXPECT_EQ((*page)->Get(6), LifePage::State::kEmpty);
  Reap(pid);
}

TEST(LifePageTest, ExitIsSeen) {
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  const pid_t pid = StartChild(**page, 0, [] {});
  EXPECT_TRUE(WaitForDeath(**page, 0, kLong));
  Reap(pid);
}

TEST(LifePageTest, DeathIsSeenAcrossExec) {
  // A worker is exec'ed with the descriptor: exec'ing itself ends the claim of the thread, a
  // program that takes its slot after exec keeps it. Here the first.
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  const pid_t pid = StartChild(**page, 1, [] { ::execl("/bin/sleep", "sleep", "20", nullptr); });
  EXPECT_TRUE(WaitForDeath(**page, 1, kLong));
  ::kill(pid, SIGKILL);
  Reap(pid);
}

TEST(LifePageTest, TheWaiterWakesTheOthers) {
  // The kernel wakes one sleeper of the word only.
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  const pid_t pid = StartChild(**page, 5, [] { ::pause(); });
  std::atomic<int> seen{0};
  {
    std::vector<std::jthread> waiters;
    for (int i = 0; i < 4; ++i) {
      waiters.emplace_back([&] { seen += WaitForDeath(**page, 5, kLong) ? 1 : 0; });
    }
    ::kill(pid, SIGKILL);
  }
  EXPECT_EQ(seen, 4);
  Reap(pid);
}

TEST(LifePageTest, ManySlotsAtOnce) {
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  const pid_t first = StartChild(**page, 10, [] { ::pause(); });
  const pid_t second = StartChild(**page, 11, [] { ::pause(); });
  const auto slots = SlotsOf(**page, {9, 10, 11});
  EXPECT_THAT(LifePage::WaitForAnyDeath(slots, absl::Milliseconds(2)), testing::IsEmpty());
  ::kill(second, SIGKILL);
  EXPECT_THAT(LifePage::WaitForAnyDeath(slots, kLong), testing::ElementsAre(2));
  ::kill(first, SIGKILL);
  EXPECT_TRUE(WaitForDeath(**page, 10, kLong));
  EXPECT_THAT(LifePage::WaitForAnyDeath(slots, kLong), testing::ElementsAre(1, 2));
  Reap(first);
  Reap(second);
}

TEST(LifePageTest, MoreSlotsThanOneSystemCallTakes) {
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  std::vector<int> slots(300);
  std::iota(slots.begin(), slots.end(), 0);
  const pid_t pid = StartChild(**page, 299, [] { ::pause(); });
  ::kill(pid, SIGKILL);
  EXPECT_THAT(LifePage::WaitForAnyDeath(SlotsOf(**page, slots), kLong), testing::ElementsAre(299));
  Reap(pid);
}

TEST(LifePageTest, AnInterruptEndsTheWait) {
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  std::atomic<uint32_t> interrupt{0};
  const auto slots = SlotsOf(**page, {1, 2});
  std::jthread interrupter([&] {
    interrupt = 1;
    FutexWakeAll(&interrupt);
  });
  EXPECT_THAT(LifePage::WaitForAnyDeath(slots, kLong, &interrupt, 0), testing::IsEmpty());
  EXPECT_EQ(interrupt, 1u);
}

TEST(LifePageTest, AThreadsEndIsADeathToo) {
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  std::thread([&] {
    EXPECT_TRUE((*page)->Take(2).ok());
    EXPECT_EQ((*page)->Take(3).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ((*page)->Get(2), LifePage::State::kAlive);
  }).join();
  EXPECT_TRUE(WaitForDeath(**page, 2, kLong));
  std::thread([&] {
    EXPECT_EQ((*page)->Take(2).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ((*page)->Take(-1).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE((*page)->Take(3).ok());
  }).join();
}

TEST(LifePageTest, DeathsHaveTheOrderInWhichTheyWereFirstSeen) {
  auto page = LifePage::Create();
  ASSERT_TRUE(page.ok()) << page.status();
  // Another process sees that 8 is dead, and dies then itself; nobody has looked here meanwhile.
  const pid_t first = StartChild(**page, 8, [] { ::pause(); });
  const pid_t second = StartChild(**page, 2, [&] {
    auto mine = LifePage::Open(UniqueFd(::dup((*page)->fd())));
    if (mine.ok()) WaitForDeath(**mine, 8, kLong);
  });
  EXPECT_EQ((*page)->DeathOrder(8), 0);
  ::kill(first, SIGKILL);
  Reap(first);
  Reap(second);
  const auto slots = SlotsOf(**page, {1, 2, 8});
  EXPECT_THAT(LifePage::WaitForAnyDeath(slots, kLong), testing::ElementsAre(1, 2));
  EXPECT_EQ((*page)->DeathOrder(8), 1);
  EXPECT_EQ((*page)->DeathOrder(2), 2);
  EXPECT_EQ((*page)->DeathOrder(1), 0);
}

// Takes `slot` on a thread that ends.
absl::Status LiveAndDie(LifePage& page, int slot) {
  absl::Status taken;
  std::thread([&] { taken = page.Take(slot); }).join();
  return taken;
}

TEST(LifePageTest, WordsAreUsedAgainAndSlotsAreNot) {
  auto created = LifePage::Create(/*words=*/3);
  ASSERT_TRUE(created.ok()) << created.status();
  LifePage& page = **created;
  const absl::StatusOr<int> stays = page.Issue();
  ASSERT_TRUE(stays.ok());
  // More starts than there are words by far, beside one that stays.
  constexpr int kStarts = 2 * LifePage::kWords;
  std::set<int> seen = {*stays};
  int64_t last_place = 0;
  for (int i = 0; i < kStarts; ++i) {
    const absl::StatusOr<int> slot = page.Issue();
    ASSERT_TRUE(slot.ok()) << i << ": " << slot.status();
    ASSERT_TRUE(seen.insert(*slot).second) << *slot;
    ASSERT_EQ(page.Get(*slot), LifePage::State::kEmpty);
    if (i % 64 == 0) {
      ASSERT_TRUE(LiveAndDie(page, *slot).ok());  // else it ends before it has taken the slot
    }
    page.End(*slot);
    ASSERT_EQ(page.Get(*slot), LifePage::State::kDead);
    ASSERT_GT(page.DeathOrder(*slot), last_place);
    last_place = page.DeathOrder(*slot);
    page.Release(*slot);
  }
  EXPECT_EQ(page.Get(*stays), LifePage::State::kEmpty);
}

TEST(LifePageTest, TheWordOfOneThatLivesIsGivenToNobody) {
  auto created = LifePage::Create(/*words=*/1);
  ASSERT_TRUE(created.ok()) << created.status();
  LifePage& page = **created;
  const int slot = *page.Issue();
  const pid_t pid = StartChild(page, slot, [] { ::pause(); });
  EXPECT_EQ(page.Get(slot), LifePage::State::kAlive);
  page.End(slot);
  page.Release(slot);  // it was taken for dead
  EXPECT_FALSE(page.Issue().ok());
  EXPECT_EQ(page.Get(slot), LifePage::State::kAlive);
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(WaitForDeath(page, slot, kLong));
  Reap(pid);
}

TEST(LifePageTest, WhoWatchesAnOldSlotSeesItDead) {
  auto created = LifePage::Create(/*words=*/1);
  ASSERT_TRUE(created.ok()) << created.status();
  LifePage& page = **created;
  const int first = *page.Issue();
  EXPECT_EQ(page.Issue().status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(LiveAndDie(page, first).ok());
  EXPECT_EQ(page.DeathOrder(first), 1);
  page.End(first);
  page.Release(first);
  const int second = *page.Issue();
  EXPECT_NE(second, first);
  EXPECT_EQ(page.Get(second), LifePage::State::kEmpty);
  const pid_t pid = StartChild(page, second, [] { ::pause(); });
  EXPECT_EQ(page.Get(second), LifePage::State::kAlive);
  EXPECT_EQ(page.Get(first), LifePage::State::kDead);
  EXPECT_TRUE(WaitForDeath(page, first, kLong));
  EXPECT_FALSE(WaitForDeath(page, second, absl::Milliseconds(2)));
  EXPECT_EQ(LiveAndDie(page, first).code(), absl::StatusCode::kFailedPrecondition);
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(WaitForDeath(page, second, kLong));
  EXPECT_EQ(page.DeathOrder(second), 2);
  Reap(pid);
}

TEST(LifePageTest, WhoTakesAPageOverGivesAwayWhatNobodyHas) {
  auto created = LifePage::Create(/*words=*/4);
  ASSERT_TRUE(created.ok()) << created.status();
  const int lives = *(*created)->Issue(), ended = *(*created)->Issue();
  const int not_released = *(*created)->Issue();
  ASSERT_TRUE(LiveAndDie(**created, ended).ok());
  (*created)->End(ended);
  (*created)->Release(ended);
  const pid_t pid = StartChild(**created, lives, [] { ::pause(); });
  (*created)->End(not_released);

  UniqueFd fd(::dup((*created)->fd()));
  created->reset();
  auto opened = LifePage::Open(std::move(fd));
  ASSERT_TRUE(opened.ok()) << opened.status();
  LifePage& page = **opened;
  page.TakeOver({lives, not_released});
  EXPECT_EQ(page.Get(lives), LifePage::State::kAlive);
  std::set<int> given = {lives, ended, not_released};
  for (int i = 0; i < 2; ++i) {  // the fresh one, and the one that had ended
    const absl::StatusOr<int> slot = page.Issue();
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_TRUE(given.insert(*slot).second) << *slot;
    EXPECT_EQ(page.Get(*slot), LifePage::State::kEmpty);
  }
  EXPECT_FALSE(page.Issue().ok()) << "the others have theirs";
  page.Release(not_released);
  EXPECT_TRUE(given.insert(*page.Issue()).second);
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(WaitForDeath(page, lives, kLong));
  Reap(pid);
}

TEST(LifePageTest, WaitsForSlotsOfSeveralPages) {
  auto one = LifePage::Create(2), other = LifePage::Create(2);
  ASSERT_TRUE(one.ok() && other.ok());
  const pid_t pid = StartChild(**other, 1, [] { ::pause(); });
  const LifePage::Ref slots[] = {{one->get(), 1}, {other->get(), 1}};
  EXPECT_THAT(LifePage::WaitForAnyDeath(slots, absl::Milliseconds(2)), testing::IsEmpty());
  ::kill(pid, SIGKILL);
  EXPECT_THAT(LifePage::WaitForAnyDeath(slots, kLong), testing::ElementsAre(1));
  Reap(pid);
}

TEST(LifePageTest, OtherDescriptorsAreRefused) {
  EXPECT_EQ(LifePage::Open(UniqueFd(::memfd_create("x", 0))).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep
