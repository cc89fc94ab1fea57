// SPDX-License-Identifier: Apache-2.0
// The graph of a training step: nodes in an order in which they can run. Shapes are static; what an
// op is (its shapes, gradient, cost) lies in ops/. Passes make a new graph from an old one; nodes
// are never edited in place. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_ENGINE_GRAPH_GRAPH_H_
#define LOCKSTEP_ENGINE_GRAPH_GRAPH_H_

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "engine/graph/types.h"

namespace lockstep::engine {

struct OpDef;

// Constants of a node, by name; ordered, so that dumps and hashes are the same everywhere.
using Attr = std::variant<int64_t, double, std::string, Shape>;
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Attr>> values) : values_(values) {}

  // Sets or replaces.
  void Set(const std::string& name, Attr value) { values_[name] = std::move(value); }
  // The value of `name`, or `otherwise` (an empty shape) without it. REQUIRES: it has that type.
  int64_t Int(const std::string& name, int64_t otherwise = 0) const;
  double Double(const std::string& name, double otherwise = 0) const;
  std::string String(const std::string& name, const std::string& otherwise = "") const;
  Shape Extents(const std::string& name) const;
  // "activation=relu scale=2"
  std::string ToString() const;

 private:
  std::map<std::string, Attr> values_;
};

// One output of one node.
struct Value {
  int node = -1;
  int output = 0;
  bool valid() const { return node >= 0; }
  bool operator==(const Value&) const = default;
  bool operator<(const Value& other) const {
    return node != other.node ? node < other.node : output < other.output;
  }
};

struct Node {
  const OpDef* op = nullptr;  // of the op table; never null
  std::vector<Value> inputs;
  Attrs attrs;
  std::vector<TensorType> outputs;
  std::string name;
};

// Nodes in an order in which every node follows those that it reads. It only grows; passes make a
// new one.
class Graph {
 public:
  // Appends a node and infers its outputs. After the first error the graph stays as it is, an
  // invalid Value is returned, and status() tells the error: builders check once, at their end.
  Value Add(const OpDef& op, std::vector<Value> inputs, Attrs attrs = {},
            const std::string& name = "");
  // A leaf that the executor binds to memory: "input", "parameter" (name is the parameter's).
  Value AddLeaf(const OpDef& op, TensorType type, const std::string& name);

  // The first error of Add: InvalidArgument with the node's name.
  const absl::Status& status() const { return status_; }

  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(int id) const { return nodes_[static_cast<size_t>(id)]; }
  const TensorType& type(Value value) const;
  // The node that is named so, or -1.
  int Find(const std::string& name) const;

  // Values that outlive the graph's run, by name ("loss", "grad:0.weight").
  void AddOutput(const std::string& name, Value value);
  const std::vector<std::pair<std::string, Value>>& outputs() const { return outputs_; }
  // Marks `value` as the last of a block of the model: recomputation (passes/recompute.h) may keep
  // it alone.
  void AddBoundary(Value value) {
    if (status_.ok()) boundaries_.push_back(value);
  }
  const std::vector<Value>& boundaries() const { return boundaries_; }
  // Passes note which value of the graph they began with a value is, so that tools can compare
  // graphs that went through different passes. Without a note a value is its own origin.
  void SetOrigin(Value value, Value origin) { origins_[value] = origin; }
  // The noted origin of `value`, or `value` itself.
  Value Origin(Value value) const {
    const auto it = origins_.find(value);
    return it == origins_.end() ? value : it->second;
  }
  // For each node and output: the nodes that read it, in order. An output of the graph counts as a
  // reader with the id nodes().size().
  std::vector<std::vector<std::vector<int>>> Readers() const;

  // Order, arity, inferred shapes, names. Errors: Internal, a pass has made a wrong graph.
  absl::Status Verify() const;
  // One line a node: "%3 = linear(%0, %1, %2) activation=relu : f32[64,256]  # 0".
  std::string ToText() const;
  // For Graphviz.
  std::string ToDot() const;
  // Sum over nodes.
  double Flops() const;

 private:
  Value Fail(absl::Status status);

  std::vector<Node> nodes_;
  std::vector<std::pair<std::string, Value>> outputs_;
  std::vector<Value> boundaries_;
  std::map<Value, Value> origins_;
  absl::Status status_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_GRAPH_GRAPH_H_
