// SPDX-License-Identifier: Apache-2.0
// A multi-layer perceptron: linear layers with relu between them, named as torch.nn.Sequential
// names them: "0.weight", "0.bias", "2.weight", ... (the odd places are the relus, whatever the
// dropout). Thread-safety: immutable.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "engine/models/model.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

std::string LayerName(size_t layer) { return absl::StrCat(2 * layer); }

class Mlp : public Model {
 public:
  // Errors: InvalidArgument for widths below 1 and a dropout outside [0, 1).
  static absl::StatusOr<std::unique_ptr<Model>> Make(const MlpSpec& spec, const InputSpec& input);

  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }
  bool random() const override { return dropout_ > 0; }
  Value Build(Graph* graph, const ModelInputs& inputs) const override;

 private:
  std::vector<int64_t> widths_;  // from the input's elements to the classes
  double dropout_ = 0;
  std::vector<ParameterSpec> parameters_;
};

absl::StatusOr<std::unique_ptr<Model>> Mlp::Make(const MlpSpec& spec, const InputSpec& input) {
  auto model = std::make_unique<Mlp>();
  if (input.fields.empty() || input.fields[0].name != "inputs") {
    return absl::InvalidArgumentError("the mlp takes samples of fp32 values with one label each");
  }
  if (!(spec.dropout >= 0 && spec.dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mlp.dropout is ", spec.dropout, ": it must be in [0, 1)"));
  }
  model->dropout_ = spec.dropout;
  model->widths_.push_back(Elements(input.fields[0].shape));
  for (const int64_t width : spec.hidden) {
    if (width < 1 || width > (1 << 20)) {
      return absl::InvalidArgumentError(
          absl::StrCat("mlp.hidden has ", width, ": widths are from 1 to 1048576"));
    }
    model->widths_.push_back(width);
  }
  model->widths_.push_back(input.classes);
  for (size_t i = 0; i + 1 < model->widths_.size(); ++i) {
    const int64_t in = model->widths_[i], out = model->widths_[i + 1];
    // torch.nn.Linear: kaiming_uniform_(a = sqrt(5)) is U(-1/sqrt(fan_in), 1/sqrt(fan_in)), the
    // bias too.
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    model->parameters_.push_back(
        {LayerName(i) + ".weight", {out, in}, ParameterSpec::Init::kUniform, bound});
    model->parameters_.back().hidden = i + 2 < model->widths_.size();
    model->parameters_.push_back(
        {LayerName(i) + ".bias", {out}, ParameterSpec::Init::kUniform, bound, false});
  }
  return model;
}

Value Mlp::Build(Graph* graph, const ModelInputs& inputs) const {
  Value x = inputs.Field("inputs");
  const TensorType type = graph->type(x);
  if (type.shape.size() != 2) {
    x = graph->Add(ops::kReshape, {x}, {{"shape", Shape{type.shape[0], widths_[0]}}}, "flatten");
  }
  // Blocks of about the root of the number of layers: the least memory when they are made again.
  const auto block = static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(widths_.size()))));
  for (size_t i = 0; i + 1 < widths_.size(); ++i) {
    if (i > 0) x = graph->Add(ops::kRelu, {x}, {}, absl::StrCat(2 * i - 1));
    if (i > 0 && inputs.training && dropout_ > 0) {
      const std::string name = absl::StrCat("dropout", i);
      x = graph->Add(
          ops::kDropout, {x, inputs.address},
          {{"rate", dropout_}, {"key", static_cast<int64_t>(SiteKey(inputs.seed, name))}}, name);
    }
    if (i > 0 && i % block == 0) graph->AddBoundary(x);
    x = graph->Add(
        ops::kLinear,
        {x, inputs.Parameter(LayerName(i) + ".weight"), inputs.Parameter(LayerName(i) + ".bias")},
        {}, LayerName(i));
    if (!x.valid()) return x;
  }
  return x;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MlpSpec::Make(const InputSpec& input) const {
  return Mlp::Make(*this, input);
}

}  // namespace lockstep::engine
