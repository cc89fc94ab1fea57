// SPDX-License-Identifier: Apache-2.0
// What the tests against golden files share: the generators' numbers, and what they wrote.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_TESTS_GOLDEN_GOLDEN_H_
#define LOCKSTEP_TESTS_GOLDEN_GOLDEN_H_

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/philox.h"
#include "engine/engine.h"

namespace lockstep::engine {

// Number `i` of a site, in [0, 1): what tools/gen_golden_*.py make of the same two.
inline float Uniform(uint64_t site, uint64_t i) {
  return static_cast<float>(MixBits((site << 32) + i) & 0xFFFFFF) * 0x1.0p-24f;
}

struct Free {
  void operator()(void* pointer) const { std::free(pointer); }
};
using Memory64 = std::unique_ptr<void, Free>;
// Memory for an executor.
inline Memory64 Allocate(size_t bytes) {
  return Memory64(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
}

// The lists of a file, "name count value...", by their names.
struct GoldenLists {
  std::vector<std::string> names;  // in the file's order
  std::map<std::string, std::vector<double>> values;
};
inline GoldenLists ReadGolden(const std::string& name) {
  std::ifstream file(LOCKSTEP_GOLDEN "/" + name);
  GoldenLists golden;
  std::string key;
  size_t count = 0;
  while (file >> key >> count) {
    std::vector<double>& values = golden.values[key];
    golden.names.push_back(key);
    values.resize(count);
    for (double& value : values) file >> value;
  }
  return golden;
}

// Sets the weights of a transformer as the generators do: those of layer norms are near 1.
inline void SetTransformerWeights(const Plan& plan, char* state) {
  uint64_t site = 1;
  for (const StateEntry& entry : plan.state()) {
    if (entry.role != StateEntry::Role::kParameter) continue;
    const bool norm =
        entry.name.ends_with(".weight") && (entry.name.find("ln_") != std::string::npos ||
                                            entry.name.find("LayerNorm") != std::string::npos);
    for (size_t i = 0; i < entry.bytes / sizeof(float); ++i) {
      reinterpret_cast<float*>(state + entry.offset)[i] =
          (Uniform(site, i) * 2 - 1) * 0.3f + (norm ? 1.0f : 0.0f);
    }
    ++site;
  }
}

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_GOLDEN_GOLDEN_H_
