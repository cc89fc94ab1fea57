// SPDX-License-Identifier: Apache-2.0
// What a step asks of the data plane takes no memory from the heap, once it has been done twice:
// partial sums, the reduction on its general path, the commit rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/conformance/cluster.h"
#include "tests/heap_watch.h"

namespace lockstep {
namespace {

constexpr int64_t kCount = 2000;  // several pieces for each owner
constexpr int kSteps = 200;

// The nodes that a rank holds whole, each with a buffer in the arena.
std::vector<NodeBuffer> MakeNodes(const Communicator& communicator, Transport* transport,
                                  int shards) {
  std::vector<NodeBuffer> nodes;
  const ShardRange held = DealShards(shards, communicator.world_size(), communicator.rank());
  for (const ShardRange node : WholeNodes(shards, held)) {
    auto buffer = transport->Allocate(kCount * sizeof(float), "a node");
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    auto* const data = static_cast<float*>(*buffer);
    std::fill_n(data, kCount, 1.0f);
    nodes.push_back({node, data});
  }
  return nodes;
}

TEST(ShmHeapTest, StepsAskForNoMemory) {
  for (const auto& [world, shards] : {std::pair{1, 3}, {2, 2}, {3, 5}, {3, 8}}) {
    Cluster cluster(Kind::kShm, world, 1 << 20);
    std::atomic<int> ready{0};
    std::atomic<int64_t> before{-1}, after{-1}, live_before{0}, live_after{0};
    cluster.Run(1, shards, [&, world = world, shards = shards](Communicator& c, Transport& t) {
      const std::vector<NodeBuffer> nodes = MakeNodes(c, &t, shards);
      TreeReduceArgs args;
      args.nodes = nodes;
      args.count = kCount;
      args.result = const_cast<float*>(nodes[0].data);
      const auto step = [&](int64_t number) {
        EXPECT_TRUE(c.WaitCommitted(number - 1, Never()).ok());
        // The owned slice of the last step holds its sum: begin with leaves again.
        for (const NodeBuffer& node : nodes) {
          std::fill_n(const_cast<float*>(node.data), kCount, static_cast<float>(node.node.size()));
        }
        args.step = number;
        const auto slices = c.TreeReduce(args, Never());
        EXPECT_TRUE(slices.ok()) << slices.status();
        for (const Slice& slice : *slices) {
          if (slice.end == slice.begin) continue;
          EXPECT_EQ(slice.data[0], static_cast<float>(shards));
        }
        c.PublishCommitted(number);
      };
      c.PublishCommitted(0);
      step(1);
      step(2);
      // All ranks are between two steps while the heap is looked at.
      const auto meet = [&](int count) {
        ready.fetch_add(1);
        while (ready.load() < count * world) std::this_thread::yield();
      };
      meet(1);
      if (c.rank() == 0) {
        before = HeapNow().calls;
        live_before = HeapNow().live_bytes;
      }
      meet(2);
      for (int64_t number = 3; number <= kSteps; ++number) step(number);
      meet(3);
      if (c.rank() == 0) {
        after = HeapNow().calls;
        live_after = HeapNow().live_bytes;
      }
      meet(4);
    });
    EXPECT_EQ(after.load(), before.load()) << world << " ranks, " << shards << " shards";
    EXPECT_EQ(live_after.load(), live_before.load());
  }
}

}  // namespace
}  // namespace lockstep
