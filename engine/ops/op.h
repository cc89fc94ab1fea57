// SPDX-License-Identifier: Apache-2.0
// What an op is, apart from its kernels: arity, shapes, gradient, cost, aliasing and test cases.
// Each op is one file of this folder that defines one OpDef; registry.cc lists them with their
// kernels. Thread-safety: immutable tables and pure functions.
#ifndef LOCKSTEP_ENGINE_OPS_OP_H_
#define LOCKSTEP_ENGINE_OPS_OP_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

// What a gradient rule sees. It appends nodes to `graph`, which compute the gradients of the inputs
// that are wanted from those of the outputs.
class GradientContext {
 public:
  GradientContext(Graph* graph, int node, std::vector<std::optional<Value>> output_gradients,
                  std::vector<bool> wanted)
      : graph(graph),
        node(graph->node(node)),
        id(node),
        output_gradients(std::move(output_gradients)),
        wanted(std::move(wanted)),
        input_gradients(this->node.inputs.size()) {}

  Value input(int i) const { return node.inputs[static_cast<size_t>(i)]; }
  // The node's i-th output.
  Value output(int i = 0) const { return Value{id, i}; }
  // The gradient of output i. REQUIRES: something reads that output.
  Value dy(int i = 0) const { return *output_gradients[static_cast<size_t>(i)]; }
  bool wants(int i) const { return wanted[static_cast<size_t>(i)]; }
  // Says that `gradient` is that of input i. REQUIRES: of the same type as the input.
  void Set(int i, Value gradient) { input_gradients[static_cast<size_t>(i)] = gradient; }

  Graph* const graph;
  const Node node;  // a copy: the rule makes the graph grow
  const int id;
  const std::vector<std::optional<Value>> output_gradients;
  const std::vector<bool> wanted;
  std::vector<std::optional<Value>> input_gradients;
};

struct Cost {
  double flops = 0;  // multiply and add count as two
  double bytes = 0;  // read and written, each value once
};

// One case of the conformance suite. Integer inputs are labels in [-1, classes), -1 being ignored.
struct OpCase {
  std::vector<TensorType> inputs;
  Attrs attrs;
  int64_t classes = 0;
};

struct OpDef {
  const char* name = nullptr;
  const char* doc = nullptr;  // inputs -> outputs, in one line
  int min_inputs = 0;
  int max_inputs = 0;

  // Bound to memory by the executor; has no kernel.
  bool leaf = false;
  // Output 0 is input 0 with another shape; has no kernel.
  bool view = false;
  // Outputs can be added to what the memory holds (RunContext::accumulate), so they may be born in
  // the gradient vector.
  bool accumulates = false;
  // (input, output) pairs that may share memory when the input is read for the last time.
  std::vector<std::pair<int, int>> in_place = {};

  // Errors: InvalidArgument that names the shapes.
  absl::StatusOr<std::vector<TensorType>> (*infer)(const std::vector<TensorType>& inputs,
                                                   const Attrs& attrs) = nullptr;
  // Null only with a reason in `no_gradient`.
  void (*gradient)(GradientContext& context) = nullptr;
  const char* no_gradient = nullptr;
  // Null: no floating point operations worth counting.
  double (*flops)(const std::vector<TensorType>& inputs,
                  const std::vector<TensorType>& outputs) = nullptr;
  // Odd sizes and every attribute.
  std::vector<OpCase> (*cases)() = nullptr;
};

// What running `node` of `graph` once costs.
Cost CostOf(const Graph& graph, const Node& node);

// "a is f32[2,3], but f32[2,4] is needed".
absl::Status ShapeError(const std::string& what, const TensorType& is, const std::string& needed);
// Errors unless `type` is fp32 of `rank` extents.
absl::Status CheckMatrix(const std::string& what, const TensorType& type, size_t rank = 2);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPS_OP_H_
