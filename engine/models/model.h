// SPDX-License-Identifier: Apache-2.0
// A model as the engine compiles it: its parameters with their initial values, and how it is built
// into a graph. A model is one file of this folder and one line in model.cc.
// Thread-safety: values and pure functions.
#ifndef LOCKSTEP_ENGINE_MODELS_MODEL_H_
#define LOCKSTEP_ENGINE_MODELS_MODEL_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

struct ParameterSpec {
  std::string name;
  Shape shape;
  double bound = 0;  // initially uniform in [-bound, bound)
};

class Model {
 public:
  virtual ~Model() = default;
  // In the order of the state table.
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  // inputs [batch, sample...] -> logits [batch, classes]; `parameters` has every parameter's leaf.
  virtual Value Build(Graph* graph, Value inputs,
                      const std::map<std::string, Value>& parameters) const = 0;
};

// Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec, const InputSpec& input);

// The initial values of a parameter: a function of (seed, name, element).
void Initialise(const ParameterSpec& parameter, uint64_t seed, float* values);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_MODEL_H_
