// SPDX-License-Identifier: Apache-2.0
// The precision pass: which values of a graph are stored in 16 bits, after train.precision. It does
// what autocast does, but on the whole step at once, backward pass included, and after fusion, so
// that a value is rounded where the fused node writes it. What an op wants is its HalfRules:
//   - the factors of matrix products, convolutions and attention are rounded, and so are their
//     results; sums inside are fp32;
//   - gradients of weights, statistics and losses are fp32;
//   - norms, softmax, losses and embeddings give fp32; other ops follow their operands;
//   - a result that every reader would round is stored rounded.
// In the pure modes the weights themselves, and all that can be, are in 16 bits. What each op does
// is listed in docs/precision.md. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_PASSES_PRECISION_H_
#define LOCKSTEP_ENGINE_PASSES_PRECISION_H_

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"

namespace lockstep::engine {

struct Precision {
  DType type = DType::kF32;  // bf16, f16, or f32: nothing is rounded
  bool pure = false;         // weights too

  // fp32, tf32 (which is fp32 where there is no such hardware), bf16, fp16, pure_bf16 or pure_fp16.
  // Errors: InvalidArgument that lists these.
  static absl::StatusOr<Precision> Parse(const std::string& name);
  // How weights that are trained are stored.
  DType weights() const { return pure ? type : DType::kF32; }
};

// `graph`, all in fp32, with the types of `precision`. `stored` are the names of the parameter
// leaves that the memory has in its 16 bits. Outputs stay fp32. With `keeps_weights` a parameter is
// rounded once for all its readers, else for each of them.
Graph ApplyPrecision(const Graph& graph, const Precision& precision,
                     const std::set<std::string>& stored, bool keeps_weights = false);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_PASSES_PRECISION_H_
