// SPDX-License-Identifier: Apache-2.0
// A graph of one node, for tests of its CUDA kernel.
#ifndef LOCKSTEP_TESTS_UNIT_ENGINE_ONE_NODE_H_
#define LOCKSTEP_TESTS_UNIT_ENGINE_ONE_NODE_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/kernels.h"
#include "engine/graph/graph.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {

// A node with its operands in an arena.
struct OneNode {
  Graph graph;
  Value made;
  KernelOperands operands;
  size_t used = 0;

  const Node& node() const { return graph.node(made.node); }
  Storage Place(size_t bytes) {
    const Storage storage{Region::kArena, used};
    used += cuda::AlignedBytes(bytes);
    return storage;
  }
  OneNode(const OpDef& op, const std::vector<TensorType>& inputs, const Attrs& attrs) {
    std::vector<Value> leaves;
    for (const TensorType& type : inputs) {
      leaves.push_back(graph.AddLeaf(ops::kInput, type, absl::StrCat("input", leaves.size())));
      operands.inputs.push_back(Place(type.bytes()));
    }
    made = graph.Add(op, leaves, attrs);
    LS_CHECK(graph.status().ok()) << graph.status();
    for (const TensorType& type : node().outputs) operands.outputs.push_back(Place(type.bytes()));
    const auto scratch = CudaKernelOf(*node().op).scratch_bytes;
    operands.scratch = Place(scratch == nullptr ? 0 : scratch(graph, node()));
  }
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_UNIT_ENGINE_ONE_NODE_H_
