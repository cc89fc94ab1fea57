// SPDX-License-Identifier: Apache-2.0
// Ranks with parts of the moments, through steps, deaths at every point, joins and losses: what
// they have is always, bit for bit, what a worker that holds everything has. With vectors that
// peers read in place, with such as GPUs have (spread), and where nobody reads anything of others,
// on one host (apart) or two (hosts).
#include "worker/state/sharded_state.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/mlp_job.h"
#include "tests/unit/worker/group_members.h"
#include "tests/unit/worker/mortal_communicators.h"
#include "tests/unit/worker/sharded_member.h"

namespace lockstep::worker {
namespace {

using engine::StateEntry;
using Member = ShardedMember;

absl::Time Deadline() { return absl::Now() + absl::Seconds(100); }

engine::TrainSpec Spec(bool sharded) {
  engine::TrainSpec spec = engine::SmallMlp();
  spec.model = engine::MlpSpec{{67, 33}};
  spec.optimizer = engine::AdamSpec{.lr = 0.01, .weight_decay = 0.1, .decoupled = true};
  spec.ema_decay = 0.9;
  spec.clip_norm = 0.5;
  spec.micro_batch = 4;
  spec.shard_moments = sharded;
  return spec;
}

class ShardedStateTest : public ::testing::TestWithParam<Mode> {
 protected:
  static constexpr int kShards = 12;

  explicit ShardedStateTest(engine::TrainSpec (*spec)(bool sharded) = Spec)
      : plan_(*engine::Plan::Compile(spec(true))), reference_(spec(false)) {
    for (int64_t step = 1; step <= 8; ++step) {
      sums_.push_back(
          std::make_unique<engine::Pages>(static_cast<size_t>(plan_->gradient_count()) * 4));
      reference_.SumShards(step, 0, plan_->spec().shards, sums_.back()->floats());
      const engine::GradientSlice reduced = Reduced(step);
      states_.push_back(reference_.StateBytes());
      reference_.executor->Update(step, absl::MakeConstSpan(&reduced, 1)).value();
    }
    states_.push_back(reference_.StateBytes());
  }

  // Without a name the hosts take turns.
  Member* Add(std::string host = "") {
    members_.push_back(std::make_unique<Member>(plan_, &network_, kShards, GetParam(),
                                                [this](int64_t step) { return Reduced(step); }));
    if (host.empty()) host = added_++ % 2 == 0 ? "a" : "b";
    members_.back()->node = GetParam() == Mode::kHosts ? host : "";
    return members_.back().get();
  }
  void Kill(size_t index) { members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(index)); }

  engine::GradientSlice Reduced(int64_t step) const {
    return {0, plan_->gradient_count(), sums_[static_cast<size_t>(step - 1)]->floats()};
  }
  // The reduction of the step after the one that the member is bound to, up to its sums.
  absl::Status Reduce(Member* member, Communicator* communicator) {
    // The spent gradients: nobody reads what was there.
    std::memset(member->gradients, 0xff, static_cast<size_t>(plan_->gradient_count()) * 4);
    const int64_t step = member->executor->begun_step() + 1;
    const auto wanted = member->sharded->wanted();
    std::vector<engine::GradientSlice> slices;
    if (!wanted.empty()) {
      for (const ElementRange& range : wanted[static_cast<size_t>(communicator->rank())]) {
        slices.push_back({range.begin, range.end, Reduced(step).data + range.begin});
      }
    } else {
      slices = {Reduced(step)};
    }
    return member->sharded->ShareSums(communicator, step, slices, Deadline());
  }
  // The first half of that step.
  void Begin(Member* member) {
    const int64_t step = member->executor->begun_step() + 1;
    const engine::GradientSlice reduced = Reduced(step);
    ASSERT_TRUE(member->sharded->Begin(step, absl::MakeConstSpan(&reduced, 1)).ok());
  }

  using Body = std::function<void(Member*, Communicator*)>;
  // All members in a new generation: `body` on a thread each, after Agree when `agree` is set.
  void Generation(int64_t start_step, const Body& body, bool agree = true) {
    std::vector<GroupMember> group =
        GroupMembers(members_, [](const auto& member) -> Transport& { return *member->transport; });
    for (size_t r = 0; r < group.size(); ++r) group[r].node = members_[r]->node;
    ++generation_;
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < members_.size(); ++r) {
      threads.emplace_back([&, r] {
        Member* const member = members_[r].get();
        auto communicator = member->transport->Connect(
            {generation_, "job", "", group, static_cast<int>(r)}, Deadline());
        ASSERT_TRUE(communicator.ok()) << communicator.status();
        if (agree) {
          const auto agreed =
              member->sharded->Agree(communicator->get(), start_step, 0, Deadline());
          ASSERT_TRUE(agreed.ok()) << agreed.status();
        }
        body(member, communicator->get());
        // Nobody's memory goes before all are done with it.
        (*communicator)->Barrier(Deadline()).IgnoreError();
      });
    }
  }
  // `steps` whole steps.
  void Train(Member* member, Communicator* communicator, int steps) {
    for (int i = 0; i < steps; ++i) {
      ASSERT_TRUE(Reduce(member, communicator).ok());
      Begin(member);
      const int64_t step = member->executor->begun_step();
      if (!member->sharded->all_held()) {
        ASSERT_TRUE(member->sharded->Finish(communicator, step, Deadline()).ok());
      }
      ASSERT_EQ(member->executor->committed_step(), step);
      ASSERT_TRUE(communicator->Barrier(Deadline()).ok());  // the commit rule
      ASSERT_TRUE(member->sharded->CheckReplicas(communicator, step, Deadline()).ok());
    }
  }

  // Expects that what the member has, and what it finds at its peers, is the reference's.
  // Collective: nobody goes on while others look.
  void ExpectState(const Member& member, Communicator* communicator, int64_t step) {
    ASSERT_TRUE(member.sharded->Publish(communicator, Deadline()).ok());
    ASSERT_TRUE(communicator->Barrier(Deadline()).ok());
    Compare(member, *communicator, step);
    ASSERT_TRUE(communicator->Barrier(Deadline()).ok());
  }
  void Compare(const Member& member, const Communicator& communicator, int64_t step) {
    ASSERT_EQ(member.executor->committed_step(), step);
    const std::vector<char>& wanted = states_[static_cast<size_t>(step)];
    ExpectPresent(member);
    // Those who are apart have what they are to copy.
    size_t begin = 0, end = plan_->state_bytes();
    if (GetParam() >= Mode::kApart) {
      if (communicator.rank() != 0) begin = end / 2;
      if (communicator.rank() + 1 != communicator.world_size()) end = begin == 0 ? end / 2 : begin;
    }
    for (const StateEntry& entry : plan_->state()) {
      if (entry.offset < begin || entry.offset + entry.bytes > end) continue;
      for (size_t at = 0; at < entry.bytes;) {
        size_t bytes = entry.bytes - at;
        const char* const found = member.sharded->Locate(entry.offset + at, &bytes);
        ASSERT_EQ(std::memcmp(found, &wanted[entry.offset + at], bytes), 0) << entry.name;
        at += bytes;
      }
    }
  }
  // Expects that what the member says it has of the state after its step is the reference's.
  void ExpectPresent(const Member& member) {
    const std::vector<char>& wanted =
        states_[static_cast<size_t>(member.executor->committed_step())];
    for (const engine::StateRange& range : member.sharded->present()) {
      EXPECT_EQ(
          std::memcmp(member.state + range.begin, &wanted[range.begin], range.end - range.begin), 0)
          << range.begin << " to " << range.end;
    }
  }
  size_t BytesHeld(const Member& member) const {
    size_t bytes = 0;
    for (const engine::StateRange& range : member.sharded->present()) {
      bytes += range.end - range.begin;
    }
    return bytes;
  }

  void HalfAStep(int world, const std::set<int>& finished, int late);

  const std::shared_ptr<const engine::Plan> plan_;
  engine::Job reference_;
  std::vector<std::unique_ptr<engine::Pages>> sums_;  // by step - 1
  std::vector<std::vector<char>> states_;             // after each step
  FakeNetwork network_;
  std::vector<std::unique_ptr<Member>> members_;
  int64_t generation_ = 0;
  int added_ = 0;
};

TEST_P(ShardedStateTest, AnyNumberOfRanksMakesTheSameSteps) {
  for (const int world : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(world);
    members_.clear();
    for (int i = 0; i < world; ++i) Add();
    Generation(0, [&](Member* member, Communicator* communicator) {
      EXPECT_EQ(member->sharded->all_held(), world < 3);
      Train(member, communicator, 4);
      ExpectState(*member, communicator, 4);
    });
    const bool less = BytesHeld(*members_[0]) < plan_->state_bytes() * 9 / 10;
    EXPECT_EQ(less, world > 2);
  }
}

TEST_P(ShardedStateTest, RanksComeAndGoBetweenSteps) {
  for (int i = 0; i < 3; ++i) Add();
  const auto one_step = [&](int64_t start) {
    Generation(start, [&, start](Member* member, Communicator* communicator) {
      ExpectState(*member, communicator, start);
      Train(member, communicator, 1);
      ExpectState(*member, communicator, start + 1);
    });
  };
  one_step(0);
  Add();
  Add();
  one_step(1);  // 5
  Kill(0);
  one_step(2);  // 4
  Kill(3);
  Add();
  one_step(3);  // 4, one of them new
  Kill(1);
  one_step(4);  // 3
  Kill(1);
  one_step(5);  // 2: everybody has everything
  Kill(0);
  one_step(6);  // 1
  for (int i = 0; i < 3; ++i) Add();
  one_step(7);  // 4
}

// Two steps, and half of the third, which `finished` finish; `late` has not even begun it when the
// others' generation ends, and begins it afterwards.
void ShardedStateTest::HalfAStep(int world, const std::set<int>& finished, int late) {
  members_.clear();
  for (int i = 0; i < world; ++i) Add();
  Generation(0, [&](Member* member, Communicator* communicator) {
    Train(member, communicator, 2);
    ASSERT_TRUE(Reduce(member, communicator).ok());
    if (communicator->rank() != late) Begin(member);
    if (finished.contains(communicator->rank())) {
      ASSERT_TRUE(member->sharded->Finish(communicator, 3, Deadline()).ok());
    } else if (!finished.empty()) {
      TornCommunicator torn(communicator);
      ASSERT_FALSE(member->sharded->Finish(&torn, 3, Deadline()).ok());
    } else {
      ASSERT_TRUE(communicator->Barrier(Deadline()).ok());
    }
  });
  if (late >= 0) Begin(members_[static_cast<size_t>(late)].get());
}

TEST_P(ShardedStateTest, AHalfDoneStepIsFinishedInTheNextGeneration) {
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

TEST_P(ShardedStateTest, ADeathAtAnyPointOfAgreeingLosesNothing) {
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
              member->sharded->Agree(&mortal, 3, 0, Deadline()).status().IgnoreError();
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
TEST_P(ShardedStateTest, MomentsThatJoinersHaveCopiedAreTheirs) {
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
        const auto agreed = member->sharded->Agree(joins ? &told : communicator, 2, 0, Deadline());
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
TEST_P(ShardedStateTest, WhoIsBehindKeepsWhatItHasUntilAllHaveMore) {
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
              member->sharded->Agree(&mortal, step, 0, Deadline()).status().IgnoreError();
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

// A death before all have their part of the reduction: nobody has begun the step, all do it again.
TEST_P(ShardedStateTest, AStepWhoseSumsAreNotSharedIsDoneAgain) {
  for (const int dead : {0, 3}) {
    members_.clear();
    for (int i = 0; i < 4; ++i) Add();
    Generation(0, [&](Member* member, Communicator* communicator) {
      Train(member, communicator, 2);
      DyingCommunicator mortal(communicator, communicator->rank() == dead ? 0 : -2);
      EXPECT_EQ(Reduce(member, &mortal).ok(), GetParam() == Mode::kInPlace);
    });
    Kill(static_cast<size_t>(dead));
    Generation(2, [&](Member* member, Communicator* communicator) {
      ExpectState(*member, communicator, 2);
      Train(member, communicator, 2);
      ExpectState(*member, communicator, 4);
    });
  }
}

TEST_P(ShardedStateTest, WhenBothHoldersAreGoneAllGoBackToTheStart) {
  HalfAStep(4, {0}, -1);
  // Over hosts neighbours have the same parts.
  const size_t first = GetParam() == Mode::kHosts ? 2 : 1;
  Kill(first);
  Kill(first);
  Generation(
      3,
      [&](Member* member, Communicator* communicator) {
        const auto agreed = member->sharded->Agree(communicator, 3, 0, Deadline());
        EXPECT_EQ(agreed.status().code(), absl::StatusCode::kAborted);
        EXPECT_THAT(std::string(agreed.status().message()), ::testing::HasSubstr("both holders"));
        EXPECT_EQ(member->executor->begun_step(), 0);
      },
      /*agree=*/false);
  Add();
  Generation(0, [&](Member* member, Communicator* communicator) {
    Train(member, communicator, 3);
    ExpectState(*member, communicator, 3);
  });
}

TEST_P(ShardedStateTest, AMomentThatChangedIsFound) {
  for (int i = 0; i < 3; ++i) Add();
  Generation(0, [&](Member* member, Communicator* communicator) {
    Train(member, communicator, 1);
    // In a moment that two ranks have: nobody can say who is right.
    if (communicator->rank() == 1) {
      member->executor->BeginLoad();
      member->state[member->sharded->present()[1].begin] ^= 1;
      member->executor->EndLoad();
    }
    const absl::Status checked = member->sharded->CheckReplicas(communicator, 1, Deadline());
    EXPECT_FALSE(checked.ok());
    if (communicator->rank() == 1) {
      EXPECT_EQ(checked.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(checked.message()), ::testing::HasSubstr("no majority"));
    }
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

// Batch statistics that fill more than one block of 64 Ki elements.
class ManyStatisticsTest : public ShardedStateTest {
 protected:
  static engine::TrainSpec WithStatistics(bool sharded) {
    engine::TrainSpec spec = Spec(sharded);
    spec.model =
        engine::CnnSpec{.channels = {33000}, .kernel = 1, .batch_norm = true, .hidden = {}};
    spec.input = engine::ClassificationInput({1, 2, 2}, 10);
    return spec;
  }
  ManyStatisticsTest() : ShardedStateTest(WithStatistics) {}
};

TEST_P(ManyStatisticsTest, AllRanksGetAllOfThem) {
  ASSERT_GT(plan_->gradient_count() - plan_->TailBegin(), 65536);
  for (int i = 0; i < 4; ++i) Add();
  Generation(0, [&](Member* member, Communicator* communicator) {
    Train(member, communicator, 2);
    ExpectState(*member, communicator, 2);
  });
}

constexpr Mode kModes[] = {Mode::kInPlace, Mode::kSpread, Mode::kApart, Mode::kHosts};
INSTANTIATE_TEST_SUITE_P(All, ManyStatisticsTest, ::testing::ValuesIn(kModes),
                         [](const auto& info) { return Name(info.param); });
INSTANTIATE_TEST_SUITE_P(All, ShardedStateTest, ::testing::ValuesIn(kModes),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep::worker
