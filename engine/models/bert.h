// SPDX-License-Identifier: Apache-2.0
// BERT (J. Devlin et al., "BERT: pre-training of deep bidirectional transformers", 2019), with the
// parameter names of Hugging Face's files: bert.embeddings.word_embeddings.weight, ... Samples with
// a label for each token train the masked language model over all positions (head
// cls.predictions, which shares the word embeddings' weight); samples with one label train a
// classifier on the pooled first token. Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_MODELS_BERT_H_
#define LOCKSTEP_ENGINE_MODELS_BERT_H_

#include <memory>
#include <vector>

#include "engine/models/transformer.h"

namespace lockstep::engine {

class Bert : public Model {
 public:
  // Takes "tokens" i32 [T], "segments" i32 [T] of 0 and 1 where the samples have them, and which
  // tokens count: "attention_mask" i32 [T] (0: does not) or "lengths" i32 (the first ones).
  // Errors: InvalidArgument for sizes that do not fit, other samples, unknown presets.
  static absl::StatusOr<std::unique_ptr<Model>> Make(const BertSpec& spec, const InputSpec& input);

  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }
  bool random() const override { return size_.dropout > 0; }
  Value Build(Graph* graph, const ModelInputs& inputs) const override;

 private:
  void ListParameters();
  Value BuildEmbeddings(Graph* graph, const ModelInputs& inputs) const;

  TransformerSize size_;
  int64_t classes_ = 0;
  bool classifies_ = false;
  bool segments_ = false;
  std::string mask_;  // the field that says which tokens count; empty: all do
  std::vector<ParameterSpec> parameters_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_BERT_H_
