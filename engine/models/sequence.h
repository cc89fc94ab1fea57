// SPDX-License-Identifier: Apache-2.0
// A model that is a sequence of layers, with residual blocks. Images come as [c, h, w] or [h, w]
// and are worked on as [h, w, c]; a linear layer after an image flattens it in the order [c, h, w],
// as the ecosystem's weights expect. Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_MODELS_SEQUENCE_H_
#define LOCKSTEP_ENGINE_MODELS_SEQUENCE_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/models/model.h"

namespace lockstep::engine {

class Sequence : public Model {
 public:
  // Layers without a name are named by their place: "0", "3.body.1".
  // Errors: InvalidArgument that names the layer.
  static absl::StatusOr<std::unique_ptr<Model>> Make(std::vector<LayerSpec> layers,
                                                     const InputSpec& input);

  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }
  const std::vector<StatisticSpec>& statistics() const override { return statistics_; }
  bool random() const override { return random_; }
  Value Build(Graph* graph, const ModelInputs& inputs) const override;

 private:
  // What flows between layers: an image, or `channels` features of extents 1 x 1.
  struct Flow {
    bool image = false;
    int64_t channels = 0;
    int64_t height = 1;
    int64_t width = 1;
    int64_t features() const { return channels * height * width; }
    bool operator==(const Flow&) const = default;
  };
  // Checks the layers, completes them and lists their parameters; `flow` becomes their output.
  absl::Status Add(std::vector<LayerSpec>* layers, const std::string& prefix, Flow* flow);
  absl::Status AddLayer(LayerSpec* layer, Flow* flow);
  absl::Status AddConv(LayerSpec* layer, Flow* flow);
  absl::Status AddPool(LayerSpec* layer, Flow* flow);
  absl::Status AddResidual(LayerSpec* layer, Flow* flow);
  void AddLinear(LayerSpec* layer, Flow* flow);
  void AddBatchNorm(const LayerSpec& layer, const Flow& flow);
  void AddNorm(const LayerSpec& layer, const Flow& flow);

  // Returns for each layer whether a block that can be computed again ends with it.
  std::vector<bool> BlockEnds() const;
  static Value BuildLayers(Graph* graph, const ModelInputs& inputs,
                           const std::vector<LayerSpec>& layers, Value x);
  static Value BuildLayer(Graph* graph, const ModelInputs& inputs, const LayerSpec& layer, Value x);
  static Value BuildDropout(Graph* graph, const ModelInputs& inputs, const LayerSpec& layer,
                            Value x);
  static Value BuildLayerNorm(Graph* graph, const ModelInputs& inputs, const LayerSpec& layer,
                              Value x);

  int64_t classes_ = 0;
  bool random_ = false;
  std::vector<LayerSpec> layers_;
  std::vector<ParameterSpec> parameters_;
  std::vector<StatisticSpec> statistics_;
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_SEQUENCE_H_
