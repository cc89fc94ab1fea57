// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/graph.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status.h"
#include "engine/graph/op.h"

namespace lockstep::engine {
namespace {

template <typename T>
T Find(const std::map<std::string, Attr>& values, const std::string& name, T otherwise) {
  const auto it = values.find(name);
  if (it == values.end()) return otherwise;
  LS_CHECK(std::holds_alternative<T>(it->second)) << "attribute " << name << " has another type";
  return std::get<T>(it->second);
}

struct AttrText {
  std::string operator()(int64_t v) const { return absl::StrCat(v); }
  std::string operator()(double v) const { return absl::StrCat(v); }
  std::string operator()(const std::string& v) const { return v; }
  std::string operator()(const Shape& v) const { return ToString(v); }
};

// Keeps every product of extents, and every offset, far inside 64 bits.
constexpr int64_t kMostElements = int64_t{1} << 40;

absl::Status CheckSize(const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    if (extent > kMostElements / elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", ToString(shape), " has more than 2^40 values"));
    }
    elements *= std::max<int64_t>(extent, 1);
  }
  return absl::OkStatus();
}

std::string ValueText(Value value) {
  return value.output == 0 ? absl::StrCat("%", value.node)
                           : absl::StrCat("%", value.node, ".", value.output);
}

}  // namespace

int64_t Attrs::Int(const std::string& name, int64_t otherwise) const {
  return engine::Find<int64_t>(values_, name, otherwise);
}
double Attrs::Double(const std::string& name, double otherwise) const {
  return engine::Find<double>(values_, name, otherwise);
}
std::string Attrs::String(const std::string& name, const std::string& otherwise) const {
  return engine::Find<std::string>(values_, name, otherwise);
}
Shape Attrs::Extents(const std::string& name) const {
  return engine::Find<Shape>(values_, name, {});
}

std::string Attrs::ToString() const {
  return absl::StrJoin(values_, " ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, "=", std::visit(AttrText(), entry.second));
  });
}

Value Graph::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
  return Value();
}

Value Graph::Add(const OpDef& op, std::vector<Value> inputs, Attrs attrs, const std::string& name) {
  if (!status_.ok()) return Value();
  LS_CHECK(!op.leaf) << op.name;
  std::vector<TensorType> types;
  for (const Value& input : inputs) {
    LS_CHECK(input.valid() && input.node < static_cast<int>(nodes_.size())) << op.name;
    types.push_back(type(input));
  }
  const int count = static_cast<int>(inputs.size());
  LS_CHECK(count >= op.min_inputs && count <= op.max_inputs) << op.name << " has " << count;
  absl::StatusOr<std::vector<TensorType>> outputs = InferOutputs(op, types, attrs);
  if (!outputs.ok()) {
    return Fail(Annotate(outputs.status(), absl::StrCat(op.name, name.empty() ? "" : " ", name)));
  }
  for (const TensorType& output : *outputs) {
    if (const absl::Status status = CheckSize(output.shape); !status.ok()) {
      return Fail(Annotate(status, absl::StrCat(op.name, name.empty() ? "" : " ", name)));
    }
  }
  nodes_.push_back({&op, std::move(inputs), std::move(attrs), *std::move(outputs), name});
  return Value{static_cast<int>(nodes_.size()) - 1, 0};
}

Value Graph::AddLeaf(const OpDef& op, TensorType type, const std::string& name) {
  if (!status_.ok()) return Value();
  LS_CHECK(op.leaf) << op.name;
  for (const int64_t extent : type.shape) {
    if (extent < 1) {
      return Fail(absl::InvalidArgumentError(absl::StrCat(
          op.name, " ", name, ": shape ", engine::ToString(type.shape), " has an extent below 1")));
    }
  }
  if (const absl::Status status = CheckSize(type.shape); !status.ok()) {
    return Fail(Annotate(status, absl::StrCat(op.name, " ", name)));
  }
  nodes_.push_back({&op, {}, {}, {std::move(type)}, name});
  return Value{static_cast<int>(nodes_.size()) - 1, 0};
}

const TensorType& Graph::type(Value value) const {
  return node(value.node).outputs[static_cast<size_t>(value.output)];
}

int Graph::Find(const std::string& name) const {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

void Graph::AddOutput(const std::string& name, Value value) {
  if (!status_.ok()) return;
  LS_CHECK(value.valid()) << name;
  outputs_.emplace_back(name, value);
}

std::vector<std::vector<std::vector<int>>> Graph::Readers() const {
  std::vector<std::vector<std::vector<int>>> readers(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) readers[i].resize(nodes_[i].outputs.size());
  const auto add = [&](Value value, size_t reader) {
    readers[static_cast<size_t>(value.node)][static_cast<size_t>(value.output)].push_back(
        static_cast<int>(reader));
  };
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (const Value& input : nodes_[i].inputs) add(input, i);
  }
  for (const auto& [name, value] : outputs_) add(value, nodes_.size());
  return readers;
}

absl::Status Graph::Verify() const {
  LS_RETURN_IF_ERROR(status_);
  std::set<std::string> leaves;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const auto bad = [&](const std::string& why) {
      return absl::InternalError(absl::StrCat("node %", i, " ", node.op->name, ": ", why));
    };
    std::vector<TensorType> types;
    for (const Value& input : node.inputs) {
      if (!input.valid() || input.node >= static_cast<int>(i)) return bad("reads a later node");
      if (input.output >= static_cast<int>(this->node(input.node).outputs.size())) {
        return bad("reads an output that is not there");
      }
      types.push_back(type(input));
    }
    if (node.op->leaf) {
      if (!leaves.insert(node.name).second) return bad("two leaves are named " + node.name);
      continue;
    }
    const absl::StatusOr<std::vector<TensorType>> outputs =
        InferOutputs(*node.op, types, node.attrs);
    if (!outputs.ok()) return bad(std::string(outputs.status().message()));
    if (*outputs != node.outputs)
      return bad("its shapes are not those that follow from its inputs");
  }
  for (const auto& [name, value] : outputs_) {
    if (!value.valid() || value.node >= static_cast<int>(nodes_.size())) {
      return absl::InternalError("output " + name + " has no node");
    }
  }
  return absl::OkStatus();
}

std::string Graph::ToText() const {
  std::string text;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    absl::StrAppend(
        &text, "%", i, " = ", node.op->name, "(",
        absl::StrJoin(node.inputs, ", ",
                      [](std::string* out, Value v) { absl::StrAppend(out, ValueText(v)); }),
        ")");
    const std::string attrs = node.attrs.ToString();
    if (!attrs.empty()) absl::StrAppend(&text, " ", attrs);
    absl::StrAppend(&text, " : ",
                    absl::StrJoin(node.outputs, " ", [](std::string* out, const TensorType& type) {
                      absl::StrAppend(out, engine::ToString(type));
                    }));
    if (!node.name.empty()) absl::StrAppend(&text, "  # ", node.name);
    text += "\n";
  }
  for (const auto& [name, value] : outputs_) {
    absl::StrAppend(&text, name, " = ", ValueText(value), "\n");
  }
  return text;
}

std::string Graph::ToDot() const {
  std::string text = "digraph step {\n  rankdir=TB;\n  node [shape=box, fontname=\"monospace\"];\n";
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    absl::StrAppend(&text, "  n", i, " [label=\"", node.op->name,
                    node.name.empty() ? "" : "\\n" + node.name, "\"",
                    node.op->leaf ? ", style=rounded" : "", "];\n");
    for (const Value& input : node.inputs) {
      absl::StrAppend(&text, "  n", input.node, " -> n", i, " [label=\"",
                      engine::ToString(type(input)), "\"];\n");
    }
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    absl::StrAppend(&text, "  o", i, " [label=\"", outputs_[i].first, "\", shape=oval];\n  n",
                    outputs_[i].second.node, " -> o", i, ";\n");
  }
  return text + "}\n";
}

double Graph::Flops() const {
  double flops = 0;
  for (const Node& node : nodes_) {
    if (node.op->leaf || node.op->view) continue;
    flops += CostOf(*this, node).flops;
  }
  return flops;
}

}  // namespace lockstep::engine
