// SPDX-License-Identifier: Apache-2.0
#include "engine/passes/precision.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/engine.h"
#include "engine/graph/op.h"
#include "engine/ops/ops.h"
#include "engine/passes/rewriter.h"

namespace lockstep::engine {
namespace {

bool Has(uint32_t bits, size_t i) { return (bits >> i & 1) != 0; }

class PrecisionPass {
 public:
  PrecisionPass(const Graph& graph, const Precision& precision, const std::set<std::string>& stored,
                bool keeps_weights)
      : graph_(graph),
        precision_(precision),
        stored_(stored),
        keeps_weights_(keeps_weights),
        readers_(graph.Readers()),
        rewriter_(&graph) {}

  Graph Run() {
    const int count = static_cast<int>(graph_.nodes().size());
    for (int id = 0; id < count; ++id) ChooseTypes(id);
    for (int id = count - 1; id >= 0; --id) NarrowWhatIsOnlyRounded(id);
    for (int id = 0; id < count; ++id) Emit(id);
    for (const auto& [name, value] : graph_.outputs()) {
      if (IsHalf(TypeOf(value))) rewriter_.Replace(value, Cast(value, DType::kF32));
    }
    return rewriter_.Finish();
  }

 private:
  DType TypeOf(Value value) const { return types_.at(value); }
  bool IsStored(const Node& node) const {
    return node.op == &ops::kParameter && stored_.contains(node.name);
  }

  void ChooseTypes(int id) {
    const Node& node = graph_.node(id);
    const HalfRules& rules = node.op->half;
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      DType& type = types_[{id, static_cast<int>(o)}];
      type = node.outputs[o].dtype;
      if (type != DType::kF32) continue;
      if (node.op->view) {
        type = TypeOf(node.inputs[0]);
      } else if (node.op->leaf) {
        if (IsStored(node)) type = precision_.type;
      } else if (Has(rules.activations, o) && GivesHalf(node)) {
        type = precision_.type;
      }
    }
  }
  bool GivesHalf(const Node& node) const {
    if (node.op->half.rounded != 0) return true;
    if (node.op->half.follows == 0) return precision_.pure;
    bool any = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!Has(node.op->half.follows, i)) continue;
      if (!IsHalf(TypeOf(node.inputs[i]))) return false;
      any = true;
    }
    return any;
  }

  // Readers come later, so their decisions are known.
  void NarrowWhatIsOnlyRounded(int id) {
    const Node& node = graph_.node(id);
    for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) {
      const Value value{id, o};
      rounded_[value] = IsOnlyRounded(value);
      const bool can = !node.op->leaf && !node.op->view &&
                       Has(node.op->half.activations, static_cast<size_t>(o));
      if (can && TypeOf(value) == DType::kF32 && rounded_[value]) SetType(value);
    }
  }
  bool IsOnlyRounded(Value value) const {
    const auto& readers =
        readers_[static_cast<size_t>(value.node)][static_cast<size_t>(value.output)];
    for (const int reader : readers) {
      if (reader >= static_cast<int>(graph_.nodes().size())) return false;  // an output
      const Node& node = graph_.node(reader);
      if (node.op->view) {
        if (!rounded_.at({reader, 0})) return false;
        continue;
      }
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] == value && !Has(node.op->half.rounded, i)) return false;
      }
    }
    return !readers.empty();
  }
  // The value and the views of it.
  void SetType(Value value) {
    types_[value] = precision_.type;
    for (const int reader :
         readers_[static_cast<size_t>(value.node)][static_cast<size_t>(value.output)]) {
      if (reader < static_cast<int>(graph_.nodes().size()) && graph_.node(reader).op->view) {
        SetType({reader, 0});
      }
    }
  }

  void Emit(int id) {
    const Node& node = graph_.node(id);
    if (node.op->leaf) {
      TensorType type = node.outputs[0];
      type.dtype = TypeOf({id, 0});
      rewriter_.Replace({id, 0}, rewriter_.to().AddLeaf(*node.op, type, node.name));
      return;
    }
    std::vector<Value> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool round = Has(node.op->half.rounded, i) && TypeOf(node.inputs[i]) == DType::kF32;
      inputs.push_back(round ? RoundedValue(node.inputs[i]) : rewriter_.Map(node.inputs[i]));
    }
    Attrs attrs = node.attrs;
    for (size_t o = 0; o < node.outputs.size() && !node.op->view; ++o) {
      const DType type = TypeOf({id, static_cast<int>(o)});
      if (IsHalf(type)) attrs.Set(kDTypeAttr, std::string(Name(type)));
    }
    const Value made = rewriter_.Remake(id, inputs, attrs);
    for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) {
      LS_CHECK(rewriter_.to().type({made.node, o}).dtype == TypeOf({id, o}))
          << node.op->name << " output " << o;
    }
  }

  // A parameter is rounded again for each reader, unless the copy is kept: it stays where it is, so
  // that costs time alone, and keeping the copy from the forward to the backward pass would cost
  // memory. A batch is small beside what is kept of it.
  Value RoundedValue(Value value) {
    if (!keeps_weights_ && graph_.node(value.node).op == &ops::kParameter) {
      return Cast(value, precision_.type);
    }
    const auto it = casts_.find(value);
    if (it != casts_.end()) return it->second;
    return casts_[value] = Cast(value, precision_.type);
  }
  Value Cast(Value value, DType type) {
    const Value made = rewriter_.to().Add(ops::kCast, {rewriter_.Map(value)},
                                          {{kDTypeAttr, std::string(Name(type))}});
    rewriter_.to().SetOrigin(made, graph_.Origin(value));
    return made;
  }

  const Graph& graph_;
  const Precision precision_;
  const std::set<std::string>& stored_;
  const bool keeps_weights_;
  const std::vector<std::vector<std::vector<int>>> readers_;
  Rewriter rewriter_;
  std::map<Value, DType> types_;
  std::map<Value, bool> rounded_;  // every reader rounds it
  std::map<Value, Value> casts_;
};

}  // namespace

bool KnowsPrecision(const std::string& name) { return Precision::Parse(name).ok(); }

absl::StatusOr<Precision> Precision::Parse(const std::string& name) {
  if (name == "fp32" || name == "tf32") return Precision{};
  if (name == "bf16") return Precision{DType::kBF16, false};
  if (name == "fp16") return Precision{DType::kF16, false};
  if (name == "pure_bf16") return Precision{DType::kBF16, true};
  if (name == "pure_fp16") return Precision{DType::kF16, true};
  return absl::InvalidArgumentError(absl::StrCat(
      "precision ", name, " is not known: use fp32, tf32, bf16, fp16, pure_bf16 or pure_fp16"));
}

Graph ApplyPrecision(const Graph& graph, const Precision& precision,
                     const std::set<std::string>& stored, bool keeps_weights) {
  if (!IsHalf(precision.type)) return graph;
  return PrecisionPass(graph, precision, stored, keeps_weights).Run();
}

}  // namespace lockstep::engine
