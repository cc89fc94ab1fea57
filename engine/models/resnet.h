// SPDX-License-Identifier: Apache-2.0
// Residual networks (He et al., 2015, Deep Residual Learning for Image Recognition) with parameters
// named and initialised as torchvision's: the stride of a bottleneck lies in its 3 x 3 convolution.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_MODELS_RESNET_H_
#define LOCKSTEP_ENGINE_MODELS_RESNET_H_

#include <memory>

#include "engine/models/model.h"

namespace lockstep::engine {

// Errors: InvalidArgument for a depth that is not 18, 34, 50 or 101, images that are too small.
absl::StatusOr<std::unique_ptr<Model>> MakeResnet(const ResnetSpec& spec, const InputSpec& input);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_MODELS_RESNET_H_
