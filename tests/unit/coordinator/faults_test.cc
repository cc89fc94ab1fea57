// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/faults.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::coordinator {
namespace {

Fault OfRank(int rank) {
  Fault fault;
  fault.set_rank(rank);
  return fault;
}

TEST(FaultsTest, TheFirstAndTheNewestAreKeptAndAllAreCounted) {
  Job job;
  for (int i = 1; i <= 5000; ++i) {
    const int place = AddFault(job, OfRank(i));
    ASSERT_EQ(job.faults.at(static_cast<size_t>(place) - 1).rank(), i);
    ASSERT_LE(job.faults.size(), kMostFaults);
  }
  ASSERT_EQ(job.faults.size(), kMostFaults);
  for (size_t i = 0; i < kMostFaults; ++i) {
    const int64_t number =
        static_cast<int64_t>(i < kFirstFaults ? i + 1 : 5000 - kMostFaults + i + 1);
    EXPECT_EQ(job.faults[i].number(), number);
    EXPECT_EQ(job.faults[i].rank(), number);
  }
}

TEST(FaultsTest, WhatIsBeingHealedIsKeptAndStaysInItsPlace) {
  Job job;
  for (const int number : {25, 26, 90}) {
    while (static_cast<int>(job.faults.size()) < number) {
      AddFault(job, OfRank(static_cast<int>(job.faults.size()) + 1));
    }
    job.open_faults.emplace_back().place = number;
  }
  for (int i = 91; i <= 1000; ++i) AddFault(job, OfRank(i));
  EXPECT_EQ(job.faults.size(), kMostFaults);
  EXPECT_EQ(job.faults.back().number(), 1000);
  std::vector<int> ranks;
  for (const OpenFault& open : job.open_faults) {
    ranks.push_back(job.faults.at(static_cast<size_t>(open.place) - 1).rank());
  }
  EXPECT_EQ(ranks, (std::vector<int>{25, 26, 90}));
  EXPECT_EQ(job.open_faults.front().place, static_cast<int>(kFirstFaults) + 1);
}

TEST(FaultsTest, ManyThatAreAllBeingHealedAreKept) {
  Job job;
  for (int i = 1; i <= 150; ++i) job.open_faults.emplace_back().place = AddFault(job, OfRank(i));
  EXPECT_EQ(job.faults.size(), 150u);
  job.open_faults.clear();
  AddFault(job, OfRank(151));
  EXPECT_EQ(job.faults.size(), kMostFaults);
  EXPECT_EQ(job.faults.back().number(), 151);
}

TEST(FaultsTest, OnesWithoutNumbersOfAnEarlierVersionCount) {
  Job job;
  job.faults.resize(3000);
  AddFault(job, OfRank(7));
  EXPECT_EQ(job.faults.size(), kMostFaults);
  EXPECT_EQ(job.faults.back().number(), 3001);
  AddFault(job, OfRank(8));
  EXPECT_EQ(job.faults.back().number(), 3002);
}

}  // namespace
}  // namespace lockstep::coordinator
