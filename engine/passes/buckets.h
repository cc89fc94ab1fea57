// SPDX-License-Identifier: Apache-2.0
// Bucket placement: where each gradient lies in the gradient vector. Gradients are laid out in the
// order in which they become ready and are born in place: the node that makes one writes it there.
// Where a node cannot do that (it cannot add to what is there, or others read its result), a
// deposit node is put after it. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_BUCKETS_H_
#define LOCKSTEP_ENGINE_PASSES_BUCKETS_H_

#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/graph/graph.h"
#include "engine/graph/storage.h"

namespace lockstep::engine {

// Graph outputs with this prefix are gradients of the parameter named after it.
inline constexpr const char* kGradientPrefix = "gradient:";
// Those with this one are batch statistics, which lie after all gradients.
inline constexpr const char* kStatisticPrefix = "statistic:";
// The loss and the count of targets; written after all gradients, at the end of the vector.
inline constexpr const char* kLossOutput = "loss";
inline constexpr const char* kCountOutput = "count";
// Elements at the end of the vector: loss, count of targets (high, low), zeros.
inline constexpr int64_t kGradientTail = 16;

struct GradientSlot {
  std::string parameter;
  int64_t begin = 0;  // elements; a multiple of 16
  int64_t count = 0;
  int node = 0;  // after which it is complete
};

struct GradientLayout {
  std::vector<GradientSlot> slots;       // in memory order, which is the order of readiness
  std::vector<GradientSlot> statistics;  // named by their state entry
  std::vector<Bucket> buckets;
  std::vector<int> bucket_node;  // after which node each bucket is complete
  int64_t loss = 0;              // elements
  int64_t target_count = 0;      // two elements: high, low
  int64_t count = 0;             // of the whole vector
  // Where the graph's outputs are written.
  std::map<Value, Storage> storage;
};

struct PlacedGraph {
  Graph graph;
  GradientLayout layout;
};

// Closes a bucket when it has at least `bucket_elements`.
PlacedGraph PlaceGradients(const Graph& graph, int64_t bucket_elements);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_BUCKETS_H_
