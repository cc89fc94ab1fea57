// SPDX-License-Identifier: Apache-2.0
// The models that a job can train, as plain values: ModelSpec is the list of them. Each has
//   kName        its key under train.model of a job,
//   VisitFields  which calls visit(name, &field) for each field, by its name in the model's message
//                (proto/job_model.proto); what a job does not say stays as it is,
//   Make         which its file in models/ defines. Errors: InvalidArgument for values and samples
//                that the model does not take.
// Thread-safety: plain data.
#ifndef LOCKSTEP_ENGINE_MODEL_SPEC_H_
#define LOCKSTEP_ENGINE_MODEL_SPEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::engine {

struct InputSpec;
class Model;

struct MlpSpec {
  static constexpr char kName[] = "mlp";
  std::vector<int64_t> hidden;
  double dropout = 0;  // after each relu

  template <typename Visit>
  void VisitFields(Visit& visit) {
    visit("hidden", &hidden);
    visit("dropout", &dropout);
  }
  absl::StatusOr<std::unique_ptr<Model>> Make(const InputSpec& input) const;
};

// Stages of convolution, (batch norm,) relu and a 2 x 2 maximum; then linear layers with relu
// between them. Parameters: conv1, bn1, conv2, ..., fc1, fc2, ...
struct CnnSpec {
  static constexpr char kName[] = "cnn";
  std::vector<int64_t> channels = {32, 64};  // of each stage
  int64_t kernel = 3;                        // odd; padded so that a convolution keeps the extents
  bool batch_norm = false;
  std::vector<int64_t> hidden = {};
  double dropout = 0;  // before each linear layer

  template <typename Visit>
  void VisitFields(Visit& visit) {
    visit("channels", &channels);
    visit("kernel", &kernel);
    visit("batch_norm", &batch_norm);
    visit("hidden", &hidden);
    visit("dropout", &dropout);
  }
  absl::StatusOr<std::unique_ptr<Model>> Make(const InputSpec& input) const;
};

// A residual network (He et al., 2015) with the parameter names of torchvision.
struct ResnetSpec {
  static constexpr char kName[] = "resnet";
  int64_t depth = 18;  // 18, 34, 50, 101
  // imagenet: a 7 x 7 convolution and a pool; cifar: a 3 x 3 convolution of stride 1.
  std::string stem = "imagenet";
  bool zero_init = false;  // the last batch norm of each block starts with weight 0
  int64_t width = 64;      // channels of the first stage

  template <typename Visit>
  void VisitFields(Visit& visit) {
    visit("depth", &depth);
    visit("stem", &stem);
    visit("zero_init", &zero_init);
    visit("width", &width);
  }
  absl::StatusOr<std::unique_ptr<Model>> Make(const InputSpec& input) const;
};

// One layer of the user's own sequence. What a kind does not name, it does not read.
struct LayerSpec {
  enum class Kind {
    kLinear,
    kConv,
    kBatchNorm,
    kRelu,
    kMaxPool,
    kAvgPool,
    kGlobalAveragePool,
    kFlatten,
    kResidual,  // body(x) + shortcut(x); without a shortcut: + x
    kDropout,
    kGelu,
    kSilu,
    kTanh,
    kSigmoid,
    kLayerNorm,  // of a sample's features, or of the channels at each place of an image
  };
  Kind kind = Kind::kRelu;
  std::string name = {};  // of its parameters; empty: its place in the sequence
  int64_t width = 0;      // linear, conv: features or channels out; a last linear's 0: the classes
  int64_t kernel = 1;     // conv, pools
  int64_t stride = 0;     // conv, pools; 0: 1 for conv, the kernel for pools
  int64_t padding = 0;    // conv, pools
  int64_t dilation = 1;   // conv
  int64_t groups = 1;     // conv
  bool bias = true;       // linear, conv
  bool fan_out = false;   // conv: normal with variance 2 / fan-out instead of uniform by fan-in
  double eps = 1e-5;      // batch norm, layer norm
  double momentum = 0.1;  // batch norm: weight of the newest statistics
  bool zero = false;      // batch norm: the weight starts as 0
  double rate = 0;        // dropout
  bool tanh = false;      // gelu: its approximation by tanh
  std::vector<LayerSpec> body = {};
  std::vector<LayerSpec> shortcut = {};
};
struct LayersSpec {
  static constexpr char kName[] = "layers";
  std::vector<LayerSpec> sequence;

  template <typename Visit>
  void VisitFields(Visit& visit) {
    visit("sequence", &sequence);
  }
  absl::StatusOr<std::unique_ptr<Model>> Make(const InputSpec& input) const;
};

// A decoder as GPT-2; a number that is 0 comes from the preset, a rate below 0 too.
struct GptSpec {
  static constexpr char kName[] = "gpt";
  std::string preset = "gpt2";  // gpt2 (124M), gpt2-medium, gpt2-large, gpt2-xl
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;
  int64_t context = 0;  // positions; 0: the length of the samples
  int64_t vocab =
      0;  // rows of the token table, those beyond the data's being padding; 0: the data's
  double dropout = -1;  // of embeddings, attention and residuals
  bool tied_head = true;

  template <typename Visit>
  void VisitFields(Visit& visit) {
    visit("preset", &preset);
    visit("layers", &layers);
    visit("heads", &heads);
    visit("width", &width);
    visit("context", &context);
    visit("vocab", &vocab);
    visit("dropout", &dropout);
    visit("tied_head", &tied_head);
  }
  absl::StatusOr<std::unique_ptr<Model>> Make(const InputSpec& input) const;
};

// An encoder as BERT; zeros as in GptSpec. Samples with a label for each token train the masked
// language model, samples with one label the classifier on the first token.
struct BertSpec {
  static constexpr char kName[] = "bert";
  std::string preset = "bert-base";  // bert-tiny, -mini, -small, -medium, -base, -large
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;
  int64_t inner = 0;  // width of the feed-forward layers; 0: 4 x width
  int64_t context = 0;
  int64_t vocab = 0;
  double dropout = -1;

  template <typename Visit>
  void VisitFields(Visit& visit) {
    visit("preset", &preset);
    visit("layers", &layers);
    visit("heads", &heads);
    visit("width", &width);
    visit("inner", &inner);
    visit("context", &context);
    visit("vocab", &vocab);
    visit("dropout", &dropout);
  }
  absl::StatusOr<std::unique_ptr<Model>> Make(const InputSpec& input) const;
};

using ModelSpec = std::variant<MlpSpec, CnnSpec, ResnetSpec, LayersSpec, GptSpec, BertSpec>;

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODEL_SPEC_H_
