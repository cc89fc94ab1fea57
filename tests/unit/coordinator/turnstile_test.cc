// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/turnstile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::Lt;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

void Come(Turnstile& turnstile, uint64_t first, uint64_t last, const std::string& host,
          absl::Time now) {
  for (uint64_t id = first; id <= last; ++id) turnstile.Came(id, host, now);
}

std::vector<uint64_t> Turns(Turnstile& turnstile, absl::Time now, size_t most = 1000000) {
  std::vector<uint64_t> turns;
  while (turns.size() < most) {
    const std::optional<uint64_t> next = turnstile.Next(now);
    if (!next.has_value()) break;
    turns.push_back(*next);
  }
  return turns;
}

TEST(TurnstileTest, WhoComesAloneIsServedAtOnce) {
  Turnstile turnstile;
  EXPECT_EQ(turnstile.Next(At(0)), std::nullopt);
  turnstile.Came(7, "a", At(0));
  EXPECT_TRUE(turnstile.anybody_waits());
  EXPECT_EQ(turnstile.Next(At(0)), 7u);
  EXPECT_FALSE(turnstile.anybody_waits());
  EXPECT_EQ(turnstile.inside(), 1u);
  turnstile.Through(7, At(0.01));
  turnstile.Through(7, At(0.01));
  EXPECT_EQ(turnstile.inside(), 0u);
}

TEST(TurnstileTest, OfOneHostTheFirstIsFirst) {
  Turnstile turnstile;
  Come(turnstile, 1, 4, "a", At(0));
  EXPECT_THAT(Turns(turnstile, At(0)), ElementsAre(1, 2, 3, 4));
}

TEST(TurnstileTest, OnlySoManyAtOnce) {
  Turnstile turnstile;
  Come(turnstile, 1, 1000, "a", At(0));
  EXPECT_EQ(Turns(turnstile, At(0)).size(), Turnstile::kAtFirst);
  EXPECT_EQ(turnstile.Next(At(0)), std::nullopt);
  turnstile.Gone(3, At(0.1));  // its handshake failed
  EXPECT_EQ(Turns(turnstile, At(0.1)).size(), 1u);
}

TEST(TurnstileTest, MoreWhenTheyAreQuickAndFewerWhenTheyAreSlow) {
  Turnstile turnstile;
  uint64_t id = 0;
  absl::Time now = At(0);
  // All that are served at once take so long.
  const auto serve = [&](double seconds) {
    while (turnstile.inside() < turnstile.at_once()) {
      turnstile.Came(++id, "a", now);
      ASSERT_EQ(turnstile.Next(now), id);
    }
    turnstile.Came(1000000 + ++id, "a", now);
    now += absl::Seconds(seconds);
    for (uint64_t served = 1; served <= id; ++served) turnstile.Through(served, now);
    turnstile.Gone(1000000 + id, now);
  };
  serve(1);
  EXPECT_EQ(turnstile.at_once(), Turnstile::kAtFirst) << "neither";
  serve(0.1);
  EXPECT_EQ(turnstile.at_once(), 2 * Turnstile::kAtFirst);
  serve(0.1);
  serve(0.1);
  EXPECT_EQ(turnstile.at_once(), Turnstile::kMost);
  serve(2);
  EXPECT_EQ(turnstile.at_once(), Turnstile::kMost - Turnstile::kMost / 4);
  for (int i = 0; i < 20; ++i) serve(2);
  EXPECT_LE(turnstile.at_once(), Turnstile::kFewest + 3);
  EXPECT_GE(turnstile.at_once(), Turnstile::kFewest);
  turnstile.Came(1, "a", now);
  turnstile.Next(now);
  const size_t before = turnstile.at_once();
  turnstile.Through(1, now);
  EXPECT_EQ(turnstile.at_once(), before) << "nobody waits";
}

TEST(TurnstileTest, WhoDoesNotEndItLosesItsPlace) {
  Turnstile turnstile;
  Come(turnstile, 1, 100, "a", At(0));
  const size_t first = Turns(turnstile, At(0)).size();
  EXPECT_THAT(Turns(turnstile, At(3.9)), ElementsAre());
  const size_t then = Turns(turnstile, At(4.1)).size();
  EXPECT_EQ(then, 100 - first);
  EXPECT_THAT(turnstile.at_once(), Lt(first));
  const size_t now = turnstile.at_once();
  turnstile.Through(1, At(4.2));
  EXPECT_EQ(turnstile.at_once(), now) << "its time was up before";
}

TEST(TurnstileTest, HostsTakeTurns) {
  Turnstile turnstile;
  Come(turnstile, 1, 5, "a", At(0));
  Come(turnstile, 11, 12, "b", At(0));
  Come(turnstile, 21, 22, "c", At(0));
  EXPECT_THAT(Turns(turnstile, At(0)), ElementsAre(1, 11, 21, 2, 12, 22, 3, 4, 5));
}

TEST(TurnstileTest, AHostThatEndsNoHandshakeKeepsNobodyElseOut) {
  Turnstile turnstile;
  Come(turnstile, 1, 1000, "bad", At(0));
  Come(turnstile, 2001, 2300, "good", At(0));
  int served = 0;
  for (int round = 0; round < 100 && served < 300; ++round) {
    const absl::Time now = At(0.01 * round);
    for (const uint64_t id : Turns(turnstile, now)) {
      if (id < 2000) continue;
      turnstile.Through(id, now);
      ++served;
    }
  }
  EXPECT_EQ(served, 300);
  EXPECT_FALSE(Turns(turnstile, At(1)).empty()) << "nobody else waits now";
}

TEST(TurnstileTest, WhoLeavesIsNotServed) {
  Turnstile turnstile;
  Come(turnstile, 1, 3, "a", At(0));
  turnstile.Gone(2, At(0));
  turnstile.Gone(4, At(0));
  EXPECT_THAT(Turns(turnstile, At(0)), ElementsAre(1, 3));
  turnstile.Came(5, "b", At(0));
  turnstile.Gone(5, At(0));
  EXPECT_FALSE(turnstile.anybody_waits());
}

TEST(TurnstileTest, AfterALongWaitItIsTheLastOnesTurn) {
  Turnstile turnstile;
  Come(turnstile, 1, 3, "a", At(0));
  turnstile.Came(4, "a", At(1.5));
  EXPECT_THAT(Turns(turnstile, At(1.5)), ElementsAre(4, 3, 2, 1));
}

// Callers who give up after 5 s and come back, on a machine that makes a handshake in `cost`
// seconds and shares itself among all that are under way. How many of `callers` are through in a
// minute.
int Through(Turnstile* turnstile, int callers, double cost) {
  struct Caller {
    double tries_at = 0;  // begins or began an attempt
    double left = 0;      // of its handshake's cost
    uint64_t id = 0;      // of its connection; 0: there is none
    bool inside = false, through = false;
  };
  std::vector<Caller> all(static_cast<size_t>(callers));
  std::map<uint64_t, Caller*> by_id;
  uint64_t newest = 0;
  constexpr double kTick = 0.005;
  int through = 0;
  for (double now = 0; now < 60; now += kTick) {
    std::vector<Caller*> inside;
    for (size_t i = 0; i < all.size(); ++i) {
      Caller& caller = all[i];
      if (caller.through) continue;
      if (caller.id != 0 && now > caller.tries_at + 5) {
        if (turnstile != nullptr) turnstile->Gone(caller.id, At(now));
        // Not all at once.
        caller = Caller{now + 0.02 + 0.48 * static_cast<double>(i % 97) / 97, 0, 0, false, false};
      }
      if (caller.id == 0 && now >= caller.tries_at) {
        caller.id = ++newest;
        caller.left = cost;
        caller.inside = turnstile == nullptr;
        by_id[caller.id] = &caller;
        if (turnstile != nullptr) turnstile->Came(caller.id, "host", At(now));
      }
    }
    if (turnstile != nullptr) {
      for (const uint64_t id : Turns(*turnstile, At(now))) by_id[id]->inside = true;
    }
    for (Caller& caller : all) {
      if (caller.inside && !caller.through) inside.push_back(&caller);
    }
    for (Caller* caller : inside) {
      caller->left -= kTick / static_cast<double>(inside.size());
      if (caller->left > 0) continue;
      caller->through = true;
      ++through;
      if (turnstile != nullptr) turnstile->Through(caller->id, At(now));
    }
  }
  return through;
}

TEST(TurnstileTest, AllGetThroughWhereNoneWouldIfAllWereServedAtOnce) {
  EXPECT_LT(Through(nullptr, 300, 0.05), 30);
  Turnstile turnstile;
  EXPECT_EQ(Through(&turnstile, 300, 0.05), 300);
  Turnstile another;
  EXPECT_EQ(Through(&another, 1000, 0.002), 1000) << "in 2 s as well as before";
}

}  // namespace
}  // namespace lockstep::coordinator
