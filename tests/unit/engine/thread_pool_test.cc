// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/cpu/numerics.h"

namespace lockstep::engine {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EachPartRunsOnceARound) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.threads(), GetParam());
  std::vector<int> runs(static_cast<size_t>(pool.threads()));  // unguarded: part i writes runs[i]
  for (int round = 1; round <= 200; ++round) {
    pool.Run([&](int index) { ++runs[static_cast<size_t>(index)]; });
    for (const int count : runs) ASSERT_EQ(count, round);
  }
}

// What a part wrote in one round is there for every part of the next.
TEST_P(ThreadPoolTest, RoundsSeeWhatTheLastOneWrote) {
  ThreadPool pool(GetParam());
  const int threads = pool.threads();
  std::vector<int64_t> now(static_cast<size_t>(threads), 1), next(now);
  for (int round = 0; round < 30; ++round) {
    pool.Run([&](int index) {
      int64_t sum = 0;
      for (const int64_t value : now) sum += value;
      next[static_cast<size_t>(index)] = sum % 1000003 + index;
    });
    const int64_t sum = std::accumulate(now.begin(), now.end(), int64_t{0});
    for (int i = 0; i < threads; ++i) ASSERT_EQ(next[static_cast<size_t>(i)], sum % 1000003 + i);
    now.swap(next);
  }
}

TEST_P(ThreadPoolTest, TheCallerTakesPartZero) {
  ThreadPool pool(GetParam());
  const auto caller = std::this_thread::get_id();
  std::vector<std::thread::id> ids(static_cast<size_t>(pool.threads()));
  pool.Run([&](int index) { ids[static_cast<size_t>(index)] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], caller);
  const std::vector<std::thread::id> first = ids;
  pool.Run([&](int index) { ids[static_cast<size_t>(index)] = std::this_thread::get_id(); });
  EXPECT_EQ(ids, first) << "a part stays with its thread";
}

TEST_P(ThreadPoolTest, ItsThreadsFlushDenormals) {
  std::fesetenv(FE_DFL_ENV);
  ThreadPool pool(GetParam());
  std::vector<float> halves(static_cast<size_t>(pool.threads()), -1);
  pool.Run([&](int index) {
    volatile float smallest = std::numeric_limits<float>::min();
    halves[static_cast<size_t>(index)] = smallest / 2;
  });
  for (size_t i = 0; i < halves.size(); ++i) EXPECT_EQ(halves[i], 0.0f) << i;
  EXPECT_TRUE(FlushesDenormals()) << "the caller's";
}

// Ends before its threads have slept, and after.
TEST_P(ThreadPoolTest, EndsWithAndWithoutWork) {
  for (int i = 0; i < 20; ++i) {
    ThreadPool idle(GetParam());
    ThreadPool busy(GetParam());
    int zero = -1;
    busy.Run([&](int index) {
      if (index == 0) zero = 0;
    });
    EXPECT_EQ(zero, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 7));

TEST(PartOfTest, PartsCoverTheWholeInOrder) {
  for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
    for (const int parts : {1, 2, 3, 7}) {
      int64_t at = 0;
      for (int index = 0; index < parts; ++index) {
        const auto [begin, end] = PartOf(count, index, parts);
        EXPECT_EQ(begin, at);
        EXPECT_GE(end, begin);
        EXPECT_LE(end - begin, count / parts + 1);
        at = end;
      }
      EXPECT_EQ(at, count);
    }
  }
}

}  // namespace
}  // namespace lockstep::engine
