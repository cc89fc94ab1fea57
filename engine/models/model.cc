// SPDX-License-Identifier: Apache-2.0
#include "engine/models/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/philox.h"
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

namespace {

// Element `lane` of four normal numbers made of four words in pairs (Box and Muller, 1958).
double Normal(const std::array<uint32_t, 4>& words, size_t lane) {
  const size_t pair = lane / 2 * 2;
  const double u = (static_cast<double>(words[pair]) + 0.5) * 0x1.0p-32;
  const double angle = 2 * M_PI * static_cast<double>(words[pair + 1]) * 0x1.0p-32;
  const double radius = std::sqrt(-2 * std::log(u));
  return radius * (lane % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace

void Initialise(const ParameterSpec& parameter, uint64_t seed, float* values) {
  const uint64_t key = SiteKey(seed, parameter.name);
  const int64_t count = Elements(parameter.shape);
  const float value = static_cast<float>(parameter.value);
  if (parameter.init == ParameterSpec::Init::kConstant) {
    std::fill(values, values + count, value);
    return;
  }
  for (int64_t i = 0; i < count; i += 4) {
    // Four elements a counter: element i is word i mod 4 of counter i / 4.
    const uint64_t block = static_cast<uint64_t>(i / 4);
    const auto words =
        Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key);
    const bool normal = parameter.init == ParameterSpec::Init::kNormal;
    for (size_t l = 0; l < 4 && i + static_cast<int64_t>(l) < count; ++l) {
      values[i + static_cast<int64_t>(l)] =
          normal ? static_cast<float>(parameter.value * Normal(words, l))
                 : (2 * UniformFloat(words[l]) - 1) * value;
    }
  }
}

}  // namespace lockstep::engine
