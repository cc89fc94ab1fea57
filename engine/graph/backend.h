// SPDX-License-Identifier: Apache-2.0
// What planning a program asks of the back end that is to run it. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_GRAPH_BACKEND_H_
#define LOCKSTEP_ENGINE_GRAPH_BACKEND_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/graph/graph.h"

namespace lockstep::engine {

// An input that a kernel brings into an order of its own, which can be done once where the input
// stays the same from run to run.
struct PackedInput {
  size_t input = 0;
  size_t bytes = 0;
  // The node's scratch has a place for it too, for runs that pack it each time.
  bool in_scratch = true;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Bytes of scratch of the node's kernel; 0: none. REQUIRES: the op has one.
  virtual size_t ScratchBytes(const Graph& graph, const Node& node) const = 0;
  // Nothing: the kernel reads all its inputs where they lie.
  virtual std::optional<PackedInput> Packs(const Graph& /*graph*/, const Node& /*node*/) const {
    return std::nullopt;
  }
  // Returns whether the node's kernel takes input 1, which the graph rounds to bf16, in fp32 as
  // well and rounds it itself (kRoundsWeightAttr).
  virtual bool RoundsWeight(const Graph& /*graph*/, const Node& /*node*/) const { return false; }
  // Returns whether the node's kernel rounds input 2, a bias in fp32, to the type of output 0
  // before it reads it, so that it may as well come rounded.
  virtual bool RoundsBias(const Graph& /*graph*/, const Node& /*node*/) const { return false; }
  // Returns whether the forward pass is to leave dropout's bits for the backward pass: of an
  // `attention`, and of an `attention_backward`, which both are asked (passes/kept_dropout.h).
  virtual bool KeepsDropout(const Graph& /*graph*/, const Node& /*node*/) const { return false; }
  // For each node the last one of those that run in one launch with it; empty: each runs alone.
  virtual std::vector<int> Groups(const Graph& /*graph*/) const { return {}; }
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_GRAPH_BACKEND_H_
