// SPDX-License-Identifier: Apache-2.0
// The convolutional network of tutorials: see CnnSpec. Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_MODELS_CNN_H_
#define LOCKSTEP_ENGINE_MODELS_CNN_H_

#include <memory>

#include "engine/models/model.h"

namespace lockstep::engine {

// Errors: InvalidArgument for widths below 1, an even kernel, images that are too small.
absl::StatusOr<std::unique_ptr<Model>> MakeCnn(const CnnSpec& spec, const InputSpec& input);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_CNN_H_
