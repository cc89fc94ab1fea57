// SPDX-License-Identifier: Apache-2.0
#include "engine/models/model.h"

#include <utility>

#include "common/check.h"
#include "engine/models/bert.h"
#include "engine/models/cnn.h"
#include "engine/models/gpt.h"
#include "engine/models/mlp.h"
#include "engine/models/resnet.h"
#include "engine/models/sequence.h"

namespace lockstep::engine {

InputSpec ClassificationInput(std::vector<int64_t> sample_shape, int64_t classes) {
  return {{{"inputs", FieldSpec::Type::kFloat32, std::move(sample_shape), 0},
           {"labels", FieldSpec::Type::kInt32, {}, classes}},
          classes};
}

const std::vector<StatisticSpec>& Model::statistics() const {
  static const auto* const none = new std::vector<StatisticSpec>;
  return *none;
}

DecodeOutputs Model::BuildDecode(Graph*, const ModelInputs&, const DecodeInputs&) const {
  LS_CHECK(false) << "the model does not generate";
  return {};
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec, const InputSpec& input) {
  if (const auto* gpt = std::get_if<GptSpec>(&spec)) return Gpt::Make(*gpt, input);
  if (const auto* bert = std::get_if<BertSpec>(&spec)) return Bert::Make(*bert, input);
  if (const auto* cnn = std::get_if<CnnSpec>(&spec)) return MakeCnn(*cnn, input);
  if (const auto* resnet = std::get_if<ResnetSpec>(&spec)) return MakeResnet(*resnet, input);
  if (const auto* own = std::get_if<LayersSpec>(&spec)) return Sequence::Make(own->layers, input);
  return Mlp::Make(std::get<MlpSpec>(spec), input);
}

}  // namespace lockstep::engine
