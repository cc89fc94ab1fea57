// SPDX-License-Identifier: Apache-2.0
// GPT-2 (A. Radford et al., "Language models are unsupervised multitask learners", 2019), with the
// parameter names and layouts of Hugging Face's files: transformer.wte.weight,
// transformer.h.0.attn.c_attn.weight [in, out], ... The head shares the token table's weight.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_MODELS_GPT_H_
#define LOCKSTEP_ENGINE_MODELS_GPT_H_

#include <memory>
#include <vector>

#include "engine/models/transformer.h"

namespace lockstep::engine {

class Gpt : public Model {
 public:
  // Takes samples of "tokens" i32 [T] with a label for each.
  // Errors: InvalidArgument for sizes that do not fit, other samples, unknown presets.
  static absl::StatusOr<std::unique_ptr<Model>> Make(const GptSpec& spec, const InputSpec& input);

  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }
  bool random() const override { return size_.dropout > 0; }
  Value Build(Graph* graph, const ModelInputs& inputs) const override;
  int64_t decode_positions() const override { return size_.context; }
  // Keys and values of each layer: [2, context, width].
  std::vector<Shape> kept() const override;
  DecodeOutputs BuildDecode(Graph* graph, const ModelInputs& inputs,
                            const DecodeInputs& decode) const override;

 private:
  void ListParameters();
  // From the embeddings to the logits; attend(layer, qkv) is what the positions take from others.
  template <typename Attend>
  Value BuildBlocks(Graph* graph, TransformerBuilder* builder, Value x, const Attend& attend) const;

  TransformerSize size_;
  bool tied_head_ = true;
  std::vector<ParameterSpec> parameters_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_GPT_H_
