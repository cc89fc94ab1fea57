// SPDX-License-Identifier: Apache-2.0
#include "engine/models/model.h"

#include <utility>
#include <variant>

#include "common/check.h"

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
  return std::visit([&input](const auto& model) { return model.Make(input); }, spec);
}

}  // namespace lockstep::engine
