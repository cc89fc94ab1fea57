// SPDX-License-Identifier: Apache-2.0
// What an op is, apart from its kernels: arity, shapes, gradient, cost, aliasing and test cases.
// The ops are defined in ops/, one file for each or for a family. Thread-safety: immutable tables
// and pure functions.
#ifndef LOCKSTEP_ENGINE_GRAPH_OP_H_
#define LOCKSTEP_ENGINE_GRAPH_OP_H_

#include <cstdint>
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

// What a node does in 16-bit precision (passes/precision.h), and how the CPU brings its operands
// into fp32 (cpu/converting_kernel.h). Numbers of operands are bits: 0b101 are the first and the
// third. The default keeps all results in fp32.
struct HalfRules {
  // Inputs that are rounded to 16 bits, as the factors of a matrix product are.
  uint32_t rounded = 0;
  // Where these inputs are all in 16 bits, so are the results.
  uint32_t follows = 0;
  // Outputs that can be in 16 bits. The others (statistics, sums, gradients of weights) are fp32 in
  // every precision.
  uint32_t activations = 0;

  // A part of the rows can be computed alone: inputs and outputs that are cut along their first
  // extent, and outputs that are sums over the parts.
  uint32_t cut_inputs = 0;
  uint32_t cut_outputs = 0;
  uint32_t sums = 0;
  // All operands have one shape, which can be cut anywhere.
  bool elementwise = false;
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
  // Its types are what `infer` says, 16-bit ones too; other ops are asked as if all were fp32, and
  // the attribute "dtype" is the type of their activations.
  bool infers_types = false;
  HalfRules half = {};
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
  // Why there is no CUDA kernel; null where there is one.
  const char* no_cuda = nullptr;
  // Null: no floating point operations worth counting.
  double (*flops)(const std::vector<TensorType>& inputs,
                  const std::vector<TensorType>& outputs) = nullptr;
  // Odd sizes and every attribute.
  std::vector<OpCase> (*cases)() = nullptr;
};

// The types of an op's outputs. Errors: InvalidArgument that names the shapes.
absl::StatusOr<std::vector<TensorType>> InferOutputs(const OpDef& op,
                                                     std::vector<TensorType> inputs,
                                                     const Attrs& attrs);
// The attribute that names the type of a node's activations; without it they are fp32.
inline constexpr const char* kDTypeAttr = "dtype";
// The attribute of a node that computes some rows of another one: how many that has. What is chosen
// by the number of rows is chosen by these, so that cuts leave the bits alone.
inline constexpr const char* kWholeRowsAttr = "whole_rows";
// The attribute of a product that takes a weight, its second operand, in fp32 and rounds it to the
// type of the first (passes/rounded_weights.h).
inline constexpr const char* kRoundsWeightAttr = "rounds_weight";

// Returns what running `node` of `graph` once costs.
Cost CostOf(const Graph& graph, const Node& node);

// "a is f32[2,3], but f32[2,4] is needed".
absl::Status ShapeError(const std::string& what, const TensorType& is, const std::string& needed);
// Errors unless `type` is fp32 of `rank` extents.
absl::Status CheckMatrix(const std::string& what, const TensorType& type, size_t rank = 2);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_GRAPH_OP_H_
