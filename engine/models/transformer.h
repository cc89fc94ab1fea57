// SPDX-License-Identifier: Apache-2.0
// What the transformer models share: checks of their samples and sizes, their parameters by name,
// and the layers they are built from. Activations are rows [batch x length, width].
// Thread-safety: a builder is confined to one thread; the functions are pure.
#ifndef LOCKSTEP_ENGINE_MODELS_TRANSFORMER_H_
#define LOCKSTEP_ENGINE_MODELS_TRANSFORMER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/models/model.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {

struct TransformerSize {
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;
  int64_t inner = 0;
  int64_t context = 0;  // positions
  int64_t vocab = 0;
  double dropout = 0;
  int64_t length = 0;  // of a sample, in tokens
};

// Fills what the samples decide (length; context and vocab where they are 0) and checks the rest.
// `model`, and `sources`, the data that has samples of tokens for it, are for messages. Errors:
// InvalidArgument.
absl::Status FitToSamples(const std::string& model, const std::string& sources,
                          const InputSpec& input, TransformerSize* size);

// The field of that name, or null.
const FieldSpec* FindField(const InputSpec& input, const std::string& name);

// A parameter N(0, std); one that is constant and spared from weight decay.
ParameterSpec NormalWeight(const std::string& name, Shape shape, double std);
ParameterSpec ConstantVector(const std::string& name, int64_t extent, double value);

// Adds layers to a graph; parameters are found by their names.
class TransformerBuilder {
 public:
  TransformerBuilder(Graph* graph, const ModelInputs& inputs, const TransformerSize& size)
      : graph_(*graph), inputs_(inputs), size_(size) {}

  // The leaf of that parameter. REQUIRES: there is one.
  Value Parameter(const std::string& name) const { return inputs_.Parameter(name); }
  // a + b, of one shape.
  Value Add(Value a, Value b) { return graph_.Add(ops::kAdd, {a, b}); }
  // With name.weight and name.bias; `in_out` as the op linear has it.
  Value Linear(const std::string& name, Value x, bool in_out);
  Value LayerNorm(const std::string& name, Value x, double eps);
  // Nothing outside training or when the rate is 0. `site` addresses the mask.
  Value Dropout(const std::string& site, Value x);
  Value Embed(const std::string& table, Value tokens);
  Value AddPositions(const std::string& table, Value x);
  // `operands` are qkv, or q, k, v; then `keys` if it is valid. `queries` are the rows of q for
  // each sequence, its first positions; 0: all.
  Value Attention(const std::string& site, std::vector<Value> operands, Value keys, bool causal,
                  int64_t queries = 0);
  Value Gelu(Value x, const std::string& approximate) {
    return graph_.Add(ops::kGelu, {x}, {{"approximate", approximate}});
  }

 private:
  bool Drops() const { return inputs_.training && size_.dropout > 0; }
  int64_t Key(const std::string& site) const;

  Graph& graph_;
  const ModelInputs& inputs_;
  const TransformerSize& size_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_TRANSFORMER_H_
