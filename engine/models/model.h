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
  enum class Init {
    kUniform,   // in [-value, value)
    kNormal,    // mean 0, standard deviation value
    kConstant,  // value
  };
  std::string name;
  Shape shape;
  Init init = Init::kUniform;
  double value = 0;
  // Whether weight decay is meant for it where an optimizer spares biases and norms.
  bool decay = true;
};

// What a model is built from.
struct ModelInputs {
  std::map<std::string, Value> fields;      // the batch, without the labels
  std::map<std::string, Value> parameters;  // every parameter's leaf
  bool training = true;                     // dropout and batch statistics, or not

  // The leaf of that name. REQUIRES: there is one.
  Value Field(const std::string& name) const { return fields.at(name); }
  // The same for a parameter.
  Value Parameter(const std::string& name) const { return parameters.at(name); }
};

class Model {
 public:
  virtual ~Model() = default;
  // In the order of the state table.
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  // -> logits [rows, classes], one row for each target of the batch, in the order of the labels.
  // After an error in `graph` any value may be returned.
  virtual Value Build(Graph* graph, const ModelInputs& inputs) const = 0;
};

// Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec, const InputSpec& input);

// The initial values of a parameter: a function of (seed, name, element).
void Initialise(const ParameterSpec& parameter, uint64_t seed, float* values);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_MODEL_H_
