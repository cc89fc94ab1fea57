// SPDX-License-Identifier: Apache-2.0
// Ranks with parts of the moments in one generation after the other, and what a worker that holds
// everything has after each step, for tests: with vectors that peers read in place, with such as
// GPUs have (spread), and where nobody reads anything of others, on one host (apart) or two
// (hosts). Thread-safety: as what it wraps.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_SHARDED_STATE_FIXTURE_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_SHARDED_STATE_FIXTURE_H_

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/fake/fake_transport.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/mlp_job.h"
#include "tests/unit/worker/group_members.h"
#include "tests/unit/worker/mortal_communicators.h"
#include "tests/unit/worker/sharded_member.h"
#include "worker/state/sharded_state.h"

namespace lockstep::worker {

inline constexpr Mode kModes[] = {Mode::kInPlace, Mode::kSpread, Mode::kApart, Mode::kHosts};

inline engine::TrainSpec ShardedSpec(bool sharded) {
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
  using Member = ShardedMember;
  static constexpr int kShards = 12;
  static absl::Time Deadline() { return absl::Now() + absl::Seconds(100); }

  explicit ShardedStateTest(engine::TrainSpec (*spec)(bool sharded) = ShardedSpec)
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

  static absl::Status Agree(Member* member, Communicator* communicator, int64_t start_step) {
    StateAgreement agreement;
    agreement.evaluated_step = member->evaluated_step;
    absl::Status agreed = member->sharded->Agree(communicator, start_step, &agreement, Deadline());
    member->evaluated_step = agreement.evaluated_step;
    return agreed;
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
          const absl::Status agreed = Agree(member, communicator->get(), start_step);
          ASSERT_TRUE(agreed.ok()) << agreed;
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
    for (const engine::StateEntry& entry : plan_->state()) {
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

  // Two steps, and half of the third, which `finished` finish; `late` has not even begun it when
  // the others' generation ends, and begins it afterwards.
  void HalfAStep(int world, const std::set<int>& finished, int late) {
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

  const std::shared_ptr<const engine::Plan> plan_;
  engine::Job reference_;
  std::vector<std::unique_ptr<engine::Pages>> sums_;  // by step - 1
  std::vector<std::vector<char>> states_;             // after each step
  FakeNetwork network_;
  std::vector<std::unique_ptr<Member>> members_;
  int64_t generation_ = 0;
  int added_ = 0;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_SHARDED_STATE_FIXTURE_H_
