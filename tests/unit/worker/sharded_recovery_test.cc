// SPDX-License-Identifier: Apache-2.0
// Ranks with parts of the moments (sharded_state.h), through deaths at every point and the loss of
// what they alone had: nothing is lost that somebody has, and nobody has what it does not say.
#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/sharded_state_fixture.h"

namespace lockstep::worker {
namespace {

class ShardedRecoveryTest : public ShardedStateTest {};

TEST_P(ShardedRecoveryTest, AHalfDoneStepIsFinishedInTheNextGeneration) {
  for (const std::set<int>& finished : {std::set<int>{}, {0}, {1, 2}, {0, 1, 2, 3}}) {
    for (int dead = 0; dead < 4; ++dead) {
      for (const bool joins : {false, true}) {
        SCOPED_TRACE(absl::StrCat(finished.size(), " finished, rank ", dead, " dies, ", joins));
        HalfAStep(4, finished, finished.empty() ? (dead + 1) % 4 : -1);
        Kill(static_cast<size_t>(dead));
        if (joins) Add();
        Generation(3, [&](Member* member, Communicator* communicator) {
          ExpectState(*member, communicator, 3);
          Train(member, communicator, 2);
          ExpectState(*member, communicator, 5);
        });
      }
    }
  }
}

TEST_P(ShardedRecoveryTest, ADeathAtAnyPointOfAgreeingLosesNothing) {
  for (const std::set<int>& finished : {std::set<int>{}, {2}}) {
    for (const int dying : {0, 2, 4}) {
      bool died = true;
      for (int call = 0; died; ++call) {
        SCOPED_TRACE(absl::StrCat(finished.size(), " finished, rank ", dying, " in call ", call));
        HalfAStep(4, finished, -1);
        Add();
        Generation(
            3,
            [&](Member* member, Communicator* communicator) {
              DyingCommunicator mortal(communicator, communicator->rank() == dying ? call : -2);
              Agree(member, &mortal, 3).IgnoreError();
              if (communicator->rank() == dying) died = mortal.died();
            },
            /*agree=*/false);
        if (!died) break;
        Kill(static_cast<size_t>(dying));
        Generation(3, [&](Member* member, Communicator* communicator) {
          ExpectState(*member, communicator, 3);
          Train(member, communicator, 1);
          ExpectState(*member, communicator, 4);
        });
        ASSERT_LT(call, 100);
      }
    }
  }
}

// Both copies of a part go to joiners, whose generation ends when those who gave them let go.
TEST_P(ShardedRecoveryTest, MomentsThatJoinersHaveCopiedAreTheirs) {
  constexpr int kOld = 3, kAll = 9;
  for (int i = 0; i < kOld; ++i) Add();
  Generation(0,
             [&](Member* member, Communicator* communicator) { Train(member, communicator, 2); });
  for (int i = kOld; i < kAll; ++i) Add();
  Generation(
      2,
      [&](Member* member, Communicator* communicator) {
        ToldCommunicator told(communicator);
        const bool joins = communicator->rank() >= kOld;
        const absl::Status agreed = Agree(member, joins ? &told : communicator, 2);
        EXPECT_EQ(agreed.ok(), !joins);
      },
      /*agree=*/false);
  Generation(2, [&](Member* member, Communicator* communicator) {
    ExpectState(*member, communicator, 2);
    Train(member, communicator, 1);
    ExpectState(*member, communicator, 3);
  });
}

// With two ranks each has everything, and one may be a step ahead. It dies in any call; or a third,
// which has joined them, does, and it together with that one.
TEST_P(ShardedRecoveryTest, WhoIsBehindKeepsWhatItHasUntilAllHaveMore) {
  for (const int dying : {0, 2}) {
    bool died = true;
    for (int call = 0; died && call < 100; ++call) {
      SCOPED_TRACE(absl::StrCat("rank ", dying, " dies in call ", call));
      members_.clear();
      for (int i = 0; i < 2; ++i) Add();
      Generation(0, [&](Member* member, Communicator* communicator) {
        Train(member, communicator, 2);
        if (communicator->rank() == 0) Begin(member);
      });
      if (dying == 2) Add();
      const auto agree = [&](int64_t step, int calls) {
        Generation(
            step,
            [&, step](Member* member, Communicator* communicator) {
              DyingCommunicator mortal(communicator, communicator->rank() == dying ? calls : -2);
              Agree(member, &mortal, step).IgnoreError();
              if (communicator->rank() == dying) died = mortal.died();
            },
            /*agree=*/false);
      };
      agree(3, call);
      if (!died) break;
      // Should the others, and the coordinator, be gone, it saves what it has.
      ExpectPresent(*members_[1]);
      if (dying == 2) Kill(2);
      Kill(0);
      Add();
      const Member& left = *members_[0];
      // Where parts of the newer state are gone it goes back to what it had.
      agree(left.executor->begun_step(), -2);
      died = true;
      const int64_t step = left.executor->begun_step();
      ASSERT_GE(step, 2);
      Generation(step, [&](Member* m, Communicator* c) { ExpectState(*m, c, step); });
    }
    EXPECT_FALSE(died);
  }
}

// The one ahead dies as a third joins, which lives on and says what step the newer state is of.
TEST_P(ShardedRecoveryTest, WhoHasPutItsStateBackStandsWhereAJoinerSaysMore) {
  bool died = true;
  for (int call = 0; died && call < 100; ++call) {
    SCOPED_TRACE(absl::StrCat("rank 0 dies in call ", call));
    members_.clear();
    for (int i = 0; i < 2; ++i) Add();
    Generation(0, [&](Member* member, Communicator* communicator) {
      Train(member, communicator, 2);
      if (communicator->rank() == 0) Begin(member);
    });
    Add();
    const auto agree = [&](int64_t step, int calls) {
      Generation(
          step,
          [&, step](Member* member, Communicator* communicator) {
            const bool dies = calls >= 0 && communicator->rank() == 0;
            DyingCommunicator mortal(communicator, dies ? calls : -2);
            Agree(member, &mortal, step).IgnoreError();
            if (dies) died = mortal.died();
          },
          /*agree=*/false);
    };
    agree(3, call);
    if (!died) break;
    Kill(0);
    // The coordinator goes on after the newest step that anybody says it has.
    int64_t step = 0;
    for (int generations = 0; generations < 3; ++generations) {
      step = 0;
      for (const auto& member : members_) step = std::max(step, member->executor->begun_step());
      agree(step, -2);
    }
    ASSERT_GE(members_[0]->executor->begun_step(), 2) << "a living worker had all after step 2";
    Generation(step, [&](Member* m, Communicator* c) { ExpectState(*m, c, step); });
    died = true;
  }
  EXPECT_FALSE(died);
}

TEST_P(ShardedRecoveryTest, WhenBothHoldersAreGoneAllGoBackToTheStart) {
  HalfAStep(4, {0}, -1);
  // Over hosts neighbours have the same parts.
  const size_t first = GetParam() == Mode::kHosts ? 2 : 1;
  Kill(first);
  Kill(first);
  Generation(
      3,
      [&](Member* member, Communicator* communicator) {
        const absl::Status agreed = Agree(member, communicator, 3);
        EXPECT_EQ(agreed.code(), absl::StatusCode::kAborted);
        EXPECT_THAT(std::string(agreed.message()), ::testing::HasSubstr("both holders"));
        EXPECT_EQ(member->executor->begun_step(), 0);
      },
      /*agree=*/false);
  Add();
  Generation(0, [&](Member* member, Communicator* communicator) {
    Train(member, communicator, 3);
    ExpectState(*member, communicator, 3);
  });
}

// One alone has no memory for what it is dealt anew. The others hear that the generation is over,
// as when any leaves it.
TEST_P(ShardedRecoveryTest, OneWithoutMemoryForItsNewPartEndsNobodyElse) {
  for (int i = 0; i < 4; ++i) Add();
  Generation(0,
             [&](Member* member, Communicator* communicator) { Train(member, communicator, 2); });
  Kill(0);
  Member* const poor = members_[1].get();  // over hosts the only one that is left on its own
  poor->transport->Leave(0);
  Generation(
      2,
      [&](Member* member, Communicator* communicator) {
        const absl::Status agreed = Agree(member, communicator, 2);
        EXPECT_EQ(agreed.code(), member == poor ? absl::StatusCode::kResourceExhausted
                                                : absl::StatusCode::kAborted)
            << agreed;
        if (member == poor) communicator->Abort("a worker has no memory");  // it ends
      },
      /*agree=*/false);
  poor->transport->Leave(ScarceTransport::kPlenty);
  Generation(2, [&](Member* member, Communicator* communicator) {
    ExpectState(*member, communicator, 2);
    Train(member, communicator, 1);
    ExpectState(*member, communicator, 3);
  });
}

// Some have counted the evaluation of the step, others not: all go on as the latter, so that all
// make it again.
TEST_P(ShardedRecoveryTest, DecisionsAboutEvaluationsComeFromOneHolder) {
  for (const bool joins : {false, true}) {
    members_.clear();
    for (int i = 0; i < 3; ++i) Add();
    Generation(0, [&](Member* member, Communicator* communicator) {
      Train(member, communicator, 2);
      if (communicator->rank() == 1) return;
      member->executor->SetTracking({.evaluated_step = 2, .best_step = 2, .best = 0.5});
      member->evaluated_step = 2;
    });
    if (joins) Add();
    Generation(2, [&](Member* member, Communicator* communicator) {
      EXPECT_EQ(member->evaluated_step, 0);
      EXPECT_EQ(member->executor->tracking().best_step, 0);
      ExpectState(*member, communicator, 2);
    });
  }
}

TEST_P(ShardedRecoveryTest, AStartThatIsMadeAgainTakesNoMemoryTwice) {
  for (int i = 0; i < 4; ++i) Add();
  Generation(0, [](Member*, Communicator*) {});
  // What they have is all that there is, but for pages that hold something else besides.
  for (const auto& member : members_) member->transport->Leave(2 * ScarceTransport::kPage);
  Generation(0, [&](Member* member, Communicator* communicator) {
    member->transport->Leave(ScarceTransport::kPlenty);
    Train(member, communicator, 2);
    ExpectState(*member, communicator, 2);
  });
}

// Two of each host, through the loss of one whole host at every point of a step.
class OverHostsTest : public ShardedStateTest {
 protected:
  void Lose(const std::string& host) {
    std::erase_if(members_, [&](const auto& member) { return member->node == host; });
  }
};

TEST_P(OverHostsTest, AHostTakesNoPartOfTheStateWithIt) {
  const std::set<int> nobody, one = {1}, all = {0, 1, 2, 3};
  for (const std::set<int>& finished : {nobody, one, all}) {
    for (const std::string lost : {"a", "b"}) {
      SCOPED_TRACE(absl::StrCat(finished.size(), " finished, host ", lost));
      added_ = 0;
      HalfAStep(4, finished, -1);
      Lose(lost);
      Generation(3, [&](Member* member, Communicator* communicator) {
        EXPECT_TRUE(member->sharded->all_held());
        ExpectState(*member, communicator, 3);
        Train(member, communicator, 1);
      });
      for (int i = 0; i < 3; ++i) Add("c");
      Generation(4, [&](Member* member, Communicator* communicator) {
        ExpectState(*member, communicator, 4);
        Train(member, communicator, 1);
      });
      Lose(lost == "a" ? "b" : "a");  // only the newcomers
      Generation(5, [&](Member* member, Communicator* communicator) {
        ExpectState(*member, communicator, 5);
        Train(member, communicator, 2);
        ExpectState(*member, communicator, 7);
      });
    }
  }
}

TEST_P(OverHostsTest, ThreeHostsOfDifferentSizes) {
  for (const std::string lost : {"a", "b", "c"}) {
    SCOPED_TRACE(lost);
    members_.clear();
    for (const char* host : {"a", "a", "b", "c", "c"}) Add(host);
    Generation(0, [&](Member* member, Communicator* communicator) {
      Train(member, communicator, 2);
      ASSERT_TRUE(Reduce(member, communicator).ok());
      Begin(member);
      ASSERT_TRUE(communicator->Barrier(Deadline()).ok());
    });
    Lose(lost);
    Generation(3, [&](Member* member, Communicator* communicator) {
      ExpectState(*member, communicator, 3);
      Train(member, communicator, 1);
      ExpectState(*member, communicator, 4);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, OverHostsTest, ::testing::Values(Mode::kHosts),
                         [](const auto& info) { return Name(info.param); });

INSTANTIATE_TEST_SUITE_P(All, ShardedRecoveryTest, ::testing::ValuesIn(kModes),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep::worker
