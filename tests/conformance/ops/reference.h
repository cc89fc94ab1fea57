// SPDX-License-Identifier: Apache-2.0
// Every op once more in float64, as plainly as it can be said. The conformance suite compares
// kernels with it and takes finite differences of it. Thread-safety: pure functions.
#ifndef LOCKSTEP_TESTS_CONFORMANCE_OPS_REFERENCE_H_
#define LOCKSTEP_TESTS_CONFORMANCE_OPS_REFERENCE_H_

#include <string>
#include <vector>

#include "engine/graph/op.h"

namespace lockstep::engine {

using Doubles = std::vector<double>;

// The outputs of `op` on `inputs` (labels as doubles). Ends the test when it does not know the op.
std::vector<Doubles> Reference(const OpDef& op, const OpCase& test,
                               const std::vector<TensorType>& outputs,
                               const std::vector<Doubles>& inputs);

// gelu (both forms) and silu by their names in linear: "gelu", "gelu_tanh", "silu".
double SmoothOf(const std::string& activation, double x);
// The slope of gelu by tanh.
double GeluTanhSlope(double x);
// The same for the ops of transformers; empty for any other.
std::vector<Doubles> TransformerReference(const OpDef& op, const OpCase& test,
                                          const std::vector<TensorType>& outputs,
                                          const std::vector<Doubles>& inputs);
// Those of the image ops; empty when `name` is none of them.
std::vector<Doubles> ImageReference(const std::string& name, const OpCase& test,
                                    const std::vector<TensorType>& outputs,
                                    const std::vector<Doubles>& inputs);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_TESTS_CONFORMANCE_OPS_REFERENCE_H_
