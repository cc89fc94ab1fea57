// SPDX-License-Identifier: Apache-2.0
// BERT (J. Devlin et al., "BERT: pre-training of deep bidirectional transformers", 2019), with the
// parameter names of Hugging Face's files: bert.embeddings.word_embeddings.weight, ... Samples with
// a label for each token train the masked language model over all positions (head
// cls.predictions, which shares the word embeddings' weight); samples with one label train a
// classifier on the pooled first token. Thread-safety: immutable.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/models/transformer.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

constexpr double kEps = 1e-12;
constexpr double kStd = 0.02;
constexpr int64_t kSegments = 2;

struct Preset {
  const char* name;
  int64_t layers, heads, width;
};
constexpr Preset kPresets[] = {{"bert-tiny", 2, 2, 128},   {"bert-mini", 4, 4, 256},
                               {"bert-small", 4, 8, 512},  {"bert-medium", 8, 8, 512},
                               {"bert-base", 12, 12, 768}, {"bert-large", 24, 16, 1024}};
constexpr const char* kWords = "bert.embeddings.word_embeddings.weight";
constexpr const char* kPositions = "bert.embeddings.position_embeddings.weight";
constexpr const char* kTypes = "bert.embeddings.token_type_embeddings.weight";
constexpr const char* kTransform = "cls.predictions.transform";

std::string Layer(int64_t layer) { return absl::StrCat("bert.encoder.layer.", layer, "."); }

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

absl::StatusOr<std::unique_ptr<Model>> Bert::Make(const BertSpec& spec, const InputSpec& input) {
  const Preset* preset = nullptr;
  for (const Preset& known : kPresets) {
    if (spec.preset == known.name) preset = &known;
  }
  if (preset == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bert.preset ", spec.preset, " is not bert-tiny, -mini, -small, -medium, -base or -large"));
  }
  auto model = std::make_unique<Bert>();
  TransformerSize& size = model->size_;
  size.layers = spec.layers != 0 ? spec.layers : preset->layers;
  size.heads = spec.heads != 0 ? spec.heads : preset->heads;
  size.width = spec.width != 0 ? spec.width : preset->width;
  size.inner = spec.inner != 0 ? spec.inner : 4 * size.width;
  size.context = spec.context;
  size.vocab = spec.vocab;
  size.dropout = spec.dropout >= 0 ? spec.dropout : 0.1;
  const FieldSpec* labels = FindField(input, kLabelsField);
  model->classifies_ = labels != nullptr && labels->shape.empty();
  if (model->classifies_ && size.vocab == 0 && FindField(input, "tokens") != nullptr) {
    size.vocab = FindField(input, "tokens")->limit;
  }
  LS_RETURN_IF_ERROR(
      FitToSamples("bert", "data.npy with vocab, or data.text with masked", input, &size));
  if (!model->classifies_ && (labels == nullptr || labels->elements() != size.length)) {
    return absl::InvalidArgumentError(
        "bert takes samples with one label, or with a label for each token");
  }
  if (!model->classifies_ && input.classes > size.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("bert.vocab ", size.vocab, " is less than the ",
                                                   input.classes, " tokens of the data"));
  }
  model->classes_ = input.classes;
  const FieldSpec* segments = FindField(input, "segments");
  model->segments_ = segments != nullptr;
  if (segments != nullptr && segments->limit != kSegments) {
    return absl::InvalidArgumentError("bert takes segments 0 and 1");
  }
  for (const char* mask : {"attention_mask", "lengths"}) {
    if (FindField(input, mask) != nullptr) model->mask_ = mask;
  }
  model->ListParameters();
  return model;
}

void Bert::ListParameters() {
  const int64_t c = size_.width;
  const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    parameters_.push_back(NormalWeight(name + ".weight", {out, in}, kStd));
    parameters_.push_back(ConstantVector(name + ".bias", out, 0));
  };
  const auto norm = [&](const std::string& name) {
    parameters_.push_back(ConstantVector(name + ".weight", c, 1));
    parameters_.push_back(ConstantVector(name + ".bias", c, 0));
  };
  parameters_.push_back(NormalWeight(kWords, {size_.vocab, c}, kStd));
  parameters_.push_back(NormalWeight(kPositions, {size_.context, c}, kStd));
  if (segments_) parameters_.push_back(NormalWeight(kTypes, {kSegments, c}, kStd));
  norm("bert.embeddings.LayerNorm");
  for (int64_t layer = 0; layer < size_.layers; ++layer) {
    const std::string name = Layer(layer);
    for (const char* part : {"query", "key", "value"}) {
      linear(absl::StrCat(name, "attention.self.", part), c, c);
    }
    linear(name + "attention.output.dense", c, c);
    norm(name + "attention.output.LayerNorm");
    linear(name + "intermediate.dense", c, size_.inner);
    linear(name + "output.dense", size_.inner, c);
    norm(name + "output.LayerNorm");
  }
  if (classifies_) {
    linear("bert.pooler.dense", c, c);
    linear("classifier", c, classes_);
    return;
  }
  linear(absl::StrCat(kTransform, ".dense"), c, c);
  norm(absl::StrCat(kTransform, ".LayerNorm"));
  parameters_.push_back(ConstantVector("cls.predictions.bias", size_.vocab, 0));
}

Value Bert::BuildEmbeddings(Graph* graph, const ModelInputs& inputs) const {
  TransformerBuilder build(graph, inputs, size_);
  Value x = build.Embed(kWords, inputs.Field("tokens"));
  if (!x.valid()) return x;
  x = build.AddPositions(kPositions, x);
  if (segments_) x = build.Add(x, build.Embed(kTypes, inputs.Field("segments")));
  x = build.LayerNorm("bert.embeddings.LayerNorm", x, kEps);
  return build.Dropout("bert.embeddings.dropout", x);
}

Value Bert::Build(Graph* graph, const ModelInputs& inputs) const {
  TransformerBuilder build(graph, inputs, size_);
  Value x = BuildEmbeddings(graph, inputs);
  const Value mask = mask_.empty() ? Value() : inputs.Field(mask_);
  for (int64_t layer = 0; layer < size_.layers && graph->status().ok(); ++layer) {
    const std::string name = Layer(layer);
    const Value k = build.Linear(name + "attention.self.key", x, false);
    const Value v = build.Linear(name + "attention.self.value", x, false);
    int64_t queries = size_.length;
    if (classifies_ && layer + 1 == size_.layers) {
      // From the last attention on tokens no longer mix: the first of each sequence, which alone is
      // classified, asks and goes on without the others.
      x = graph->Add(ops::kTakeRows, {x}, {{"stride", size_.length}}, "bert.pooler");
      queries = 1;
    }
    const Value q = build.Linear(name + "attention.self.query", x, false);
    Value y = build.Attention(name + "attention.self", {q, k, v}, mask, false, queries);
    y = build.Linear(name + "attention.output.dense", y, false);
    y = build.Add(x, build.Dropout(name + "attention.output.dropout", y));
    x = build.LayerNorm(name + "attention.output.LayerNorm", y, kEps);
    y = build.Gelu(build.Linear(name + "intermediate.dense", x, false), "none");
    y = build.Linear(name + "output.dense", y, false);
    y = build.Add(x, build.Dropout(name + "output.dropout", y));
    x = build.LayerNorm(name + "output.LayerNorm", y, kEps);
    graph->AddBoundary(x);
  }
  if (!graph->status().ok()) return x;
  if (classifies_) {
    x = graph->Add(ops::kTanh, {build.Linear("bert.pooler.dense", x, false)});
    return build.Linear("classifier", build.Dropout("dropout", x), false);
  }
  x = build.Gelu(build.Linear(absl::StrCat(kTransform, ".dense"), x, false), "none");
  x = build.LayerNorm(absl::StrCat(kTransform, ".LayerNorm"), x, kEps);
  return graph->Add(ops::kLinear,
                    {x, build.Parameter(kWords), build.Parameter("cls.predictions.bias")}, {},
                    "cls.predictions");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> BertSpec::Make(const InputSpec& input) const {
  return Bert::Make(*this, input);
}

}  // namespace lockstep::engine
