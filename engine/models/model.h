// SPDX-License-Identifier: Apache-2.0
// A model as the engine compiles it: its parameters with their initial values, and how it is built
// into a graph. A model is one file of this folder, which defines Make of its struct in
// engine/model_spec.h.
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
  // Not an input embedding or the output head: those are left to AdamW where Muon trains matrices.
  bool hidden = true;
};

// Running statistics of one batch norm layer, which Build adds under this name. State entries:
// name.running_mean, name.running_var, name.num_batches_tracked.
//
// In training each shard normalises by the statistics of its own micro-batch. A micro-batch's mean
// and unbiased variance are added to entries of the gradient vector, over the micro-batches of a
// shard and over the shards; once a step the update divides by shards x accumulate and sets running
// = (1 - momentum) running + momentum x that mean.
struct StatisticSpec {
  std::string name;
  int64_t channels = 0;
  double momentum = 0;
};

// What a model is built from.
struct ModelInputs {
  std::map<std::string, Value> fields;      // the batch, without the labels
  std::map<std::string, Value> parameters;  // every parameter's leaf; in evaluation, statistics too
  bool training = true;                     // dropout and batch statistics, or not
  uint64_t seed = 0;                        // of the job: keys of what is random
  Value address;                            // of what is random: only in training, with random()

  // The leaf of that name. REQUIRES: there is one.
  Value Field(const std::string& name) const { return fields.at(name); }
  // The same for a parameter.
  Value Parameter(const std::string& name) const { return parameters.at(name); }
};

// What positions are computed from, beside the parameters.
struct DecodeInputs {
  Value token;     // i32[rows]
  Value position;  // i32[rows]
  std::vector<Value>
      kept;            // one for each of Model::kept(): keys and values of the positions before
  bool logits = true;  // or only what is kept
};
struct DecodeOutputs {
  Value logits;             // [rows, classes or more]; not valid without DecodeInputs::logits
  std::vector<Value> kept;  // with the new positions
};

class Model {
 public:
  virtual ~Model() = default;
  // In the order of the state table.
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  // Of the batch norm layers.
  virtual const std::vector<StatisticSpec>& statistics() const;
  // Returns whether Build in training needs ModelInputs::address.
  virtual bool random() const { return false; }
  // Positions of a text that BuildDecode can go on from; 0: the model does not generate.
  virtual int64_t decode_positions() const { return 0; }
  // The shapes of what is kept from position to position.
  virtual std::vector<Shape> kept() const { return {}; }
  // Positions of a text, by their tokens after those before. REQUIRES: decode_positions() > 0.
  virtual DecodeOutputs BuildDecode(Graph* graph, const ModelInputs& inputs,
                                    const DecodeInputs& decode) const;
  // -> logits [rows, classes or more], one row for each target of the batch, in the order of the
  // labels; columns from `classes` on are padding.
  // After an error in `graph` any value may be returned.
  virtual Value Build(Graph* graph, const ModelInputs& inputs) const = 0;
};

// Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec, const InputSpec& input);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_MODEL_H_
