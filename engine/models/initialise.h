// SPDX-License-Identifier: Apache-2.0
// The initial values of parameters, as addressed random numbers. Thread-safety: pure functions on
// disjoint memory.
#ifndef LOCKSTEP_ENGINE_MODELS_INITIALISE_H_
#define LOCKSTEP_ENGINE_MODELS_INITIALISE_H_

#include <cstdint>

#include "engine/models/model.h"

namespace lockstep::engine {

// The initial values of a parameter, one for each element of its shape: a function of (seed, name,
// element).
void Initialise(const ParameterSpec& parameter, uint64_t seed, float* values);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_INITIALISE_H_
