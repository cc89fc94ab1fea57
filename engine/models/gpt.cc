// SPDX-License-Identifier: Apache-2.0
// GPT-2 (A. Radford et al., "Language models are unsupervised multitask learners", 2019), with the
// parameter names and layouts of Hugging Face's files: transformer.wte.weight,
// transformer.h.0.attn.c_attn.weight [in, out], ... The head shares the token table's weight.
// Thread-safety: immutable.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/models/transformer.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

constexpr double kEps = 1e-5;
constexpr double kStd = 0.02;
constexpr const char* kTokens = "transformer.wte.weight";
constexpr const char* kPositions = "transformer.wpe.weight";

struct Preset {
  const char* name;
  int64_t layers, heads, width;
};
constexpr Preset kPresets[] = {{"gpt2", 12, 12, 768},
                               {"gpt2-medium", 24, 16, 1024},
                               {"gpt2-large", 36, 20, 1280},
                               {"gpt2-xl", 48, 25, 1600}};

std::string Block(int64_t layer) { return absl::StrCat("transformer.h.", layer, "."); }

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
  // Without `logits` it ends with the last of these, and what it returns is not valid.
  template <typename Attend>
  Value BuildBlocks(Graph* graph, TransformerBuilder* builder, Value x, const Attend& attend,
                    bool logits = true) const;

  TransformerSize size_;
  bool tied_head_ = true;
  std::vector<ParameterSpec> parameters_;
};

absl::StatusOr<std::unique_ptr<Model>> Gpt::Make(const GptSpec& spec, const InputSpec& input) {
  const Preset* preset = nullptr;
  for (const Preset& known : kPresets) {
    if (spec.preset == known.name) preset = &known;
  }
  if (preset == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gpt.preset ", spec.preset, " is not gpt2, gpt2-medium, gpt2-large or gpt2-xl"));
  }
  auto model = std::make_unique<Gpt>();
  TransformerSize& size = model->size_;
  size.layers = spec.layers != 0 ? spec.layers : preset->layers;
  size.heads = spec.heads != 0 ? spec.heads : preset->heads;
  size.width = spec.width != 0 ? spec.width : preset->width;
  size.inner = 4 * size.width;
  size.context = spec.context;
  size.vocab = spec.vocab;
  size.dropout = spec.dropout >= 0 ? spec.dropout : 0.1;
  model->tied_head_ = spec.tied_head;
  LS_RETURN_IF_ERROR(
      FitToSamples("gpt", "data.text, data.tokens, or data.npy with vocab", input, &size));
  const FieldSpec* labels = FindField(input, kLabelsField);
  if (labels == nullptr || labels->elements() != size.length) {
    return absl::InvalidArgumentError("gpt takes samples with a label for each token");
  }
  if (input.classes > size.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("gpt.vocab ", size.vocab, " is less than the ",
                                                   input.classes, " tokens of the data"));
  }
  model->ListParameters();
  return model;
}

// Weights N(0, 0.02); those that end a residual branch are scaled by 1 / sqrt(branches), so that
// the sum over 2 x layers branches keeps its size (section 2.3 of the paper).
void Gpt::ListParameters() {
  const int64_t c = size_.width;
  const double branch = kStd / std::sqrt(2.0 * static_cast<double>(size_.layers));
  const auto linear = [&](const std::string& name, int64_t in, int64_t out, double std) {
    parameters_.push_back(NormalWeight(name + ".weight", {in, out}, std));
    parameters_.push_back(ConstantVector(name + ".bias", out, 0));
  };
  const auto norm = [&](const std::string& name) {
    parameters_.push_back(ConstantVector(name + ".weight", c, 1));
    parameters_.push_back(ConstantVector(name + ".bias", c, 0));
  };
  parameters_.push_back(NormalWeight(kTokens, {size_.vocab, c}, kStd));
  parameters_.push_back(NormalWeight(kPositions, {size_.context, c}, kStd));
  for (int64_t layer = 0; layer < size_.layers; ++layer) {
    norm(Block(layer) + "ln_1");
    linear(Block(layer) + "attn.c_attn", c, 3 * c, kStd);
    linear(Block(layer) + "attn.c_proj", c, c, branch);
    norm(Block(layer) + "ln_2");
    linear(Block(layer) + "mlp.c_fc", c, size_.inner, kStd);
    linear(Block(layer) + "mlp.c_proj", size_.inner, c, branch);
  }
  norm("transformer.ln_f");
  if (!tied_head_) parameters_.push_back(NormalWeight("lm_head.weight", {size_.vocab, c}, kStd));
}

template <typename Attend>
Value Gpt::BuildBlocks(Graph* graph, TransformerBuilder* builder, Value x, const Attend& attend,
                       bool logits) const {
  TransformerBuilder& build = *builder;
  for (int64_t layer = 0; layer < size_.layers && graph->status().ok(); ++layer) {
    const std::string block = Block(layer);
    Value y = build.LayerNorm(block + "ln_1", x, kEps);
    y = attend(layer, build.Linear(block + "attn.c_attn", y, true));
    if (!logits && layer + 1 == size_.layers) return {};
    y = build.Linear(block + "attn.c_proj", y, true);
    x = build.Add(x, build.Dropout(block + "attn.resid_dropout", y));
    y = build.LayerNorm(block + "ln_2", x, kEps);
    y = build.Linear(block + "mlp.c_fc", y, true);
    y = build.Linear(block + "mlp.c_proj", build.Gelu(y, "tanh"), true);
    x = build.Add(x, build.Dropout(block + "mlp.dropout", y));
    graph->AddBoundary(x);
  }
  x = build.LayerNorm("transformer.ln_f", x, kEps);
  const char* head = tied_head_ ? kTokens : "lm_head.weight";
  return graph->Add(ops::kLinear, {x, build.Parameter(head)}, {}, "lm_head");
}

Value Gpt::Build(Graph* graph, const ModelInputs& inputs) const {
  TransformerBuilder build(graph, inputs, size_);
  Value x = build.Embed(kTokens, inputs.Field("tokens"));
  if (!x.valid()) return x;
  x = build.Dropout("transformer.drop", build.AddPositions(kPositions, x));
  return BuildBlocks(graph, &build, x, [&](int64_t layer, Value qkv) {
    return build.Attention(Block(layer) + "attn", {qkv}, {}, true);
  });
}

std::vector<Shape> Gpt::kept() const {
  return std::vector<Shape>(static_cast<size_t>(size_.layers), {2, size_.context, size_.width});
}

DecodeOutputs Gpt::BuildDecode(Graph* graph, const ModelInputs& inputs,
                               const DecodeInputs& decode) const {
  TransformerBuilder build(graph, inputs, size_);
  DecodeOutputs outputs;
  const Value x =
      build.Add(build.Embed(kTokens, decode.token), build.Embed(kPositions, decode.position));
  const auto attend = [&](int64_t layer, Value qkv) {
    const Value kept = decode.kept[static_cast<size_t>(layer)];
    const Value y = graph->Add(ops::kAttentionStep, {qkv, kept, decode.position},
                               {{"heads", size_.heads}}, Block(layer) + "attn");
    outputs.kept.push_back({y.node, 1});
    return y;
  };
  outputs.logits = BuildBlocks(graph, &build, x, attend, decode.logits);
  return outputs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> GptSpec::Make(const InputSpec& input) const {
  return Gpt::Make(*this, input);
}

}  // namespace lockstep::engine
