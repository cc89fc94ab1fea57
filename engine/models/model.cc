// SPDX-License-Identifier: Apache-2.0
#include "engine/models/model.h"

#include "common/philox.h"
#include "engine/models/mlp.h"

namespace lockstep::engine {

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec, const InputSpec& input) {
  return Mlp::Make(std::get<MlpSpec>(spec), input);
}

void Initialise(const ParameterSpec& parameter, uint64_t seed, float* values) {
  const uint64_t key = SiteKey(seed, parameter.name);
  const int64_t count = Elements(parameter.shape);
  const float bound = static_cast<float>(parameter.bound);
  for (int64_t i = 0; i < count; i += 4) {
    // Four elements a counter: element i is word i mod 4 of counter i / 4.
    const uint64_t block = static_cast<uint64_t>(i / 4);
    const auto words =
        Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key);
    for (int64_t l = 0; l < 4 && i + l < count; ++l) {
      values[i + l] = (2 * UniformFloat(words[static_cast<size_t>(l)]) - 1) * bound;
    }
  }
}

}  // namespace lockstep::engine
