// SPDX-License-Identifier: Apache-2.0
// One worker with sharded moments: an engine on the arena of a transport.
// Thread-safety: as what it wraps.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_SHARDED_MEMBER_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_SHARDED_MEMBER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/fake/fake_transport.h"
#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/mlp_job.h"
#include "tests/unit/worker/checked_spread_update.h"
#include "tests/unit/worker/scarce_transport.h"
#include "worker/state/sharded_state.h"

namespace lockstep::worker {

// What ranks may do with each other's memory.
enum class Mode { kInPlace, kSpread, kApart, kHosts };
inline std::string Name(Mode mode) {
  return std::vector<std::string>{"InPlace", "Spread", "Apart", "Hosts"}[static_cast<size_t>(mode)];
}

struct ShardedMember {
  using Whole = std::function<engine::GradientSlice(int64_t step)>;
  ShardedMember(std::shared_ptr<const engine::Plan> plan, FakeNetwork* network, int shards,
                Mode mode, Whole whole)
      : arena(plan->arena_bytes()) {
    const int64_t count = plan->gradient_count();
    const size_t bytes = plan->state_bytes() + static_cast<size_t>(count) * 8 + 65536;
    transport = std::make_unique<ScarceTransport>(network, bytes);
    ShardedState::Parts parts;
    parts.plan = plan.get();
    parts.transport = transport.get();
    parts.state = static_cast<char*>(*transport->ReservePages(plan->state_bytes(), "state"));
    parts.gradients = static_cast<float*>(*transport->Allocate(count * 4, "gradients"));
    const bool spread = mode == Mode::kSpread;
    parts.apart = mode >= Mode::kApart;
    if (spread) {
      parts.sums = static_cast<double*>(
          *transport->Allocate(plan->SumBlocks().size() * sizeof(double), "sums"));
    } else if (!parts.apart) {
      parts.spill = static_cast<float*>(
          *transport->ReservePages(ShardedState::SpillBytes(count), "new weights"));
    }
    parts.vector_count = count;
    parts.shards = shards;
    EXPECT_TRUE(ShardedState::HoldShared(*plan, transport.get(), parts.state).ok());
    executor = *engine::Executor::Create(plan, {parts.state, arena.data()});
    if (spread) {
      checked.emplace(executor.get(), plan, std::move(whole));
      parts.spread = &*checked;
    }
    if (parts.apart) {
      parts.spread = executor->spread_update();
      // The first two ranks each copy half of the state.
      parts.copies = [bytes = plan->state_bytes()](int world) {
        std::vector<std::vector<engine::StateRange>> copies(static_cast<size_t>(world));
        copies[0] = {{0, bytes / 2}};
        copies[static_cast<size_t>(world) - 1].push_back({bytes / 2, bytes});
        return copies;
      };
    }
    executor->InitState();
    parts.executor = executor.get();
    parts.halves = executor.get();
    if (spread) parts.halves = &*checked;
    state = parts.state;
    gradients = parts.gradients;
    sharded = std::make_unique<ShardedState>(parts);
  }
  engine::Pages arena;
  std::unique_ptr<ScarceTransport> transport;
  std::unique_ptr<engine::Executor> executor;
  std::optional<CheckedSpreadUpdate> checked;
  std::unique_ptr<ShardedState> sharded;
  char* state = nullptr;
  float* gradients = nullptr;
  std::string node;
  int64_t evaluated_step = 0;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_SHARDED_MEMBER_H_
