// SPDX-License-Identifier: Apache-2.0
#include "engine/models/initialise.h"

#include <algorithm>

#include "common/philox.h"
#include "engine/models/normal.h"

namespace lockstep::engine {

void Initialise(const ParameterSpec& parameter, uint64_t seed, float* values) {
  const int64_t count = Elements(parameter.shape);
  const float value = static_cast<float>(parameter.value);
  if (parameter.init == ParameterSpec::Init::kConstant) {
    std::fill(values, values + count, value);
    return;
  }
  const uint64_t key = SiteKey(seed, parameter.name);
  if (parameter.init == ParameterSpec::Init::kNormal) {
    FillNormal(key, parameter.value, values, count);
    return;
  }
  for (int64_t i = 0; i < count; i += 4) {
    // Four elements a counter: element i is word i mod 4 of counter i / 4.
    const uint64_t block = static_cast<uint64_t>(i / 4);
    const auto words =
        Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key);
    for (size_t l = 0; l < 4 && i + static_cast<int64_t>(l) < count; ++l) {
      values[i + static_cast<int64_t>(l)] = (2 * UniformFloat(words[l]) - 1) * value;
    }
  }
}

}  // namespace lockstep::engine
