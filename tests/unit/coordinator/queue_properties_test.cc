// SPDX-License-Identifier: Apache-2.0
// What holds for every queue: drawn ones are played to their end in virtual time.
#include <algorithm>
#include <random>

#include "coordinator/core/queue_pass.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/queue_fixture.h"

namespace lockstep::coordinator {
namespace {

constexpr int kSeeds = 60;

// Plays a queue: jobs end by themselves at some time within their limits, or long after when they
// have none; what is to stop stops at once and waits again.
class Play {
 public:
  explicit Play(uint32_t seed) : random_(seed) {
    const int nodes = Draw(1, 6);
    for (int i = 0; i < nodes; ++i) test_.Node(Draw(1, 4), 0, Draw(0, 2));
    const int jobs = Draw(1, 25);
    for (int i = 0; i < jobs; ++i) {
      Wish wish;
      wish.nodes = Draw(1, 3);
      wish.per_node = Draw(1, 4);
      wish.priority = Draw(0, 3) == 0 ? Draw(1, 2) : 0;
      wish.user = Draw(0, 1) == 0 ? "ann" : "bob";
      if (Draw(0, 2) > 0) wish.limit = absl::Minutes(Draw(1, 100));
      test_.Wait(wish);
    }
  }

  int Draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  // Until nobody waits who could ever start. Returns how many jobs have ended.
  int ToTheEnd() {
    for (int i = 0; i < 2000; ++i) {
      if (!Step()) return ended_;
    }
    ADD_FAILURE() << "the queue comes to no end";
    return ended_;
  }

  TestQueue& test() { return test_; }
  int stops() const { return stops_; }

 private:
  // False: nothing runs, and nothing starts.
  bool Step() {
    Queue& queue = test_.queue;
    const std::vector<Free> before = queue.cluster.free;
    const Decisions decisions = test_.Pass();
    CheckFree();
    CheckWork(decisions, before);
    CheckStops(decisions);
    const std::vector<Waiting> waited = queue.waiting;
    std::vector<bool> gone(waited.size());
    std::vector<Free> free = before;
    // Those that stop wait again, as what they were.
    std::vector<Waiting> again;
    std::vector<bool> stopped(queue.running.size());
    for (const int place : decisions.stop) {
      stopped[static_cast<size_t>(place)] = true;
      again.push_back(asks_[static_cast<size_t>(place)]);
      ++stops_;
    }
    for (const Decisions::Start& start : decisions.starts) {
      const Waiting& waiting = waited[static_cast<size_t>(start.waiting)];
      gone[static_cast<size_t>(start.waiting)] = true;
      Running job{waiting.ask->priority, waiting.ask->user, queue.now,
                  queue.now + waiting.ask->limit};
      job.may_stop = true;
      for (const auto& [node, workers] : start.placement) {
        job.holds.push_back(Take(*waiting.ask, queue.cluster, node, workers, free));
      }
      queue.running.push_back(job);
      asks_.push_back(waiting);
      stopped.push_back(false);
      const bool limited = waiting.ask->limit != absl::InfiniteDuration();
      const int most = limited ? static_cast<int>(absl::ToInt64Minutes(waiting.ask->limit)) : 300;
      ends_.push_back(queue.now + absl::Minutes(Draw(1, most)));
    }
    queue.cluster.free = free;
    queue.waiting.clear();
    for (size_t i = 0; i < waited.size(); ++i) {
      if (!gone[i]) queue.waiting.push_back(waited[i]);
    }
    queue.waiting.insert(queue.waiting.end(), again.begin(), again.end());
    absl::Time next = absl::InfiniteFuture();
    for (size_t i = 0; i < ends_.size(); ++i) {
      if (stopped[i]) ends_[i] = queue.now;
      next = std::min(next, ends_[i]);
    }
    if (next == absl::InfiniteFuture()) return false;
    queue.now = std::max(queue.now, next);
    for (size_t i = ends_.size(); i-- > 0;) {
      if (ends_[i] > queue.now) continue;
      for (const Taken& hold : queue.running[i].holds) {
        Give(queue.cluster, hold, queue.cluster.free);
      }
      ended_ += stopped[i] ? 0 : 1;
      queue.running.erase(queue.running.begin() + static_cast<long>(i));
      asks_.erase(asks_.begin() + static_cast<long>(i));
      ends_.erase(ends_.begin() + static_cast<long>(i));
    }
    return true;
  }

  // Nobody has what another has.
  void CheckFree() {
    for (const Free& free : test_.queue.cluster.free) EXPECT_GE(free.slots, 0);
  }

  // Nobody waits for whom there is room that is kept for none.
  void CheckWork(const Decisions& decisions, const std::vector<Free>&) {
    if (decisions.reservation) return;
    std::vector<bool> starts(test_.queue.waiting.size());
    for (const Decisions::Start& start : decisions.starts) {
      starts[static_cast<size_t>(start.waiting)] = true;
    }
    for (size_t i = 0; i < starts.size(); ++i) {
      if (starts[i]) continue;
      const Offer offer{test_.queue.cluster, test_.queue.cluster.free};
      EXPECT_TRUE(Place(*test_.queue.waiting[i].ask, offer).empty());
    }
  }

  // Room is made for a higher priority alone, and is enough with what is free.
  void CheckStops(const Decisions& decisions) {
    if (decisions.stop.empty()) return;
    ASSERT_TRUE(decisions.reservation.has_value());
    const Ask& ask = *test_.queue.waiting[static_cast<size_t>(decisions.reservation->waiting)].ask;
    std::vector<Free> free = test_.queue.cluster.free;
    for (const int place : decisions.stop) {
      const Running& job = test_.queue.running[static_cast<size_t>(place)];
      EXPECT_LT(job.priority, ask.priority);
      for (const Taken& hold : job.holds) Give(test_.queue.cluster, hold, free);
    }
    EXPECT_FALSE(Place(ask, Offer{test_.queue.cluster, free}).empty());
  }

  std::mt19937 random_;
  TestQueue test_;
  std::vector<Waiting> asks_;     // of those that run
  std::vector<absl::Time> ends_;  // when they end
  int ended_ = 0;
  int stops_ = 0;
};

TEST(QueuePropertiesTest, EveryJobThatFitsAnEmptyClusterRuns) {
  int stops = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Play play(seed);
    const std::vector<Free> whole = Whole(play.test().queue.cluster);
    int fit = 0;
    for (const Waiting& waiting : play.test().queue.waiting) {
      fit += !Place(*waiting.ask, Offer{play.test().queue.cluster, whole}).empty();
    }
    EXPECT_EQ(play.ToTheEnd(), fit);
    stops += play.stops();
  }
  EXPECT_GT(stops, 0);  // or the draws are too tame
}

// A stream of small jobs that never ends does not keep a large one from starting.
TEST(QueuePropertiesTest, SmallJobsDoNotStarveALargeOne) {
  for (const bool limited : {true, false}) {
    TestQueue test;
    for (int i = 0; i < 4; ++i) test.Node(4);
    std::mt19937 random(7);
    std::vector<absl::Time> ends;
    Wish small{.per_node = 1};
    if (limited) small.limit = absl::Minutes(20);
    const Ask* large = nullptr;
    int passes = 0;
    for (; passes < 2000; ++passes) {
      if (passes == 50) {
        test.Wait({.nodes = 4, .per_node = 4});
        large = test.queue.waiting.back().ask;
      }
      for (int i = 0; i < 5; ++i) test.Wait(small);
      const std::vector<Free> before = test.queue.cluster.free;
      const Decisions decisions = test.Pass();
      std::vector<Waiting> left;
      std::vector<bool> gone(test.queue.waiting.size());
      test.queue.cluster.free = before;
      bool started = false;
      for (const Decisions::Start& start : decisions.starts) {
        const Ask& ask = *test.queue.waiting[static_cast<size_t>(start.waiting)].ask;
        gone[static_cast<size_t>(start.waiting)] = true;
        started |= &ask == large;
        Running job{0, "", test.queue.now, test.queue.now + ask.limit};
        for (const auto& [node, workers] : start.placement) {
          job.holds.push_back(
              Take(ask, test.queue.cluster, node, workers, test.queue.cluster.free));
        }
        test.queue.running.push_back(job);
        ends.push_back(test.queue.now + absl::Minutes(1 + random() % 20));
      }
      if (started) break;
      for (size_t i = 0; i < gone.size(); ++i) {
        if (!gone[i] && left.size() < 50) left.push_back(test.queue.waiting[i]);
      }
      if (large != nullptr && std::none_of(left.begin(), left.end(),
                                           [&](const Waiting& w) { return w.ask == large; })) {
        for (size_t i = 0; i < gone.size(); ++i) {
          if (test.queue.waiting[i].ask == large) left.push_back(test.queue.waiting[i]);
        }
      }
      test.queue.waiting = left;
      test.queue.now += absl::Minutes(1);
      for (size_t i = ends.size(); i-- > 0;) {
        if (ends[i] > test.queue.now) continue;
        for (const Taken& hold : test.queue.running[i].holds) {
          Give(test.queue.cluster, hold, test.queue.cluster.free);
        }
        ends.erase(ends.begin() + static_cast<long>(i));
        test.queue.running.erase(test.queue.running.begin() + static_cast<long>(i));
      }
    }
    EXPECT_GE(passes, 50);
    // Fifty came before it; then the longest that runs takes twenty minutes.
    EXPECT_LE(passes, 50 + 80) << (limited ? "with" : "without") << " time limits";
  }
}

}  // namespace
}  // namespace lockstep::coordinator
