// SPDX-License-Identifier: Apache-2.0
// What ranks on the fake NCCL do in several tests. Thread-safety: plain functions, for each rank's
// own thread.
#ifndef LOCKSTEP_TESTS_CONFORMANCE_NCCL_RANKS_H_
#define LOCKSTEP_TESTS_CONFORMANCE_NCCL_RANKS_H_

#include <algorithm>
#include <cstdint>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "collectives/nccl/nccl_transport.h"
#include "gtest/gtest.h"
#include "tests/conformance/cluster.h"
#include "tests/emulation/fake_nccl.h"

namespace lockstep {

inline constexpr int64_t kCount = 4096;

inline NcclTransport& Nccl(Transport& transport) { return static_cast<NcclTransport&>(transport); }

// Reduces a vector whose leaf of shard s is s + 1 everywhere.
// Of `parts` all but the last are begun early.
inline absl::Status Reduce(Communicator& c, Transport& transport, int shards,
                           std::vector<float>* result,
                           const std::vector<ElementRange>& parts = {}) {
  std::vector<NodeBuffer> nodes;
  for (const ShardRange node : WholeNodes(shards, DealShards(shards, c.world_size(), c.rank()))) {
    float* const data = *transport.vectors().Allocate(kCount, "a node");
    float sum = 0;
    for (int s = node.begin; s < node.end; ++s) sum += static_cast<float>(s + 1);
    std::fill_n(data, kCount, sum);
    nodes.push_back({node, data});
  }
  TreeReduceArgs args;
  args.nodes = nodes;
  args.count = kCount;
  args.step = 1;
  args.parts = parts;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (absl::Status begun = c.BeginPart(args, Never()); !begun.ok()) return begun;
  }
  const auto slices = c.TreeReduce(args, Never());
  if (!slices.ok()) return slices.status();
  result->clear();
  for (const Slice& slice : *slices) {
    result->insert(result->end(), slice.data, slice.data + (slice.end - slice.begin));
  }
  return absl::OkStatus();
}

inline void ExpectReduces(Communicator& c, Transport& transport, int shards,
                          const std::vector<ElementRange>& parts = {}) {
  std::vector<float> result;
  const absl::Status status = Reduce(c, transport, shards, &result, parts);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(result, std::vector<float>(kCount, static_cast<float>(shards * (shards + 1) / 2)));
}

// Aborts `c` once data moves and what was asked of the fake has happened, or when it goes.
inline std::jthread AbortWhenMoving(Communicator& c, const std::string& reason) {
  return std::jthread([&c, reason](const std::stop_token& over) {
    while (!over.stop_requested() && (fake_nccl::FaultsPending() ||
                                      c.DescribeState().find("all there") == std::string::npos)) {
      std::this_thread::yield();
    }
    c.Abort(reason);
  });
}

}  // namespace lockstep

#endif  // LOCKSTEP_TESTS_CONFORMANCE_NCCL_RANKS_H_
