// SPDX-License-Identifier: Apache-2.0
// A multi-layer perceptron: linear layers with relu between them, named as torch.nn.Sequential
// names them: "0.weight", "0.bias", "2.weight", ... (the odd places are the relus, whatever the
// dropout). Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_MODELS_MLP_H_
#define LOCKSTEP_ENGINE_MODELS_MLP_H_

#include <memory>
#include <vector>

#include "engine/models/model.h"

namespace lockstep::engine {

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

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_MLP_H_
