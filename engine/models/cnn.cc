// SPDX-License-Identifier: Apache-2.0
// The convolutional network of tutorials: see CnnSpec. Thread-safety: pure functions.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/models/model.h"
#include "engine/models/sequence.h"

namespace lockstep::engine {

using Kind = LayerSpec::Kind;

// Errors: InvalidArgument for widths below 1, an even kernel, images that are too small.
absl::StatusOr<std::unique_ptr<Model>> CnnSpec::Make(const InputSpec& input) const {
  if (channels.empty() || kernel < 1 || kernel % 2 == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cnn: ", channels.size(), " stages with a kernel of ", kernel,
                     ": at least one stage and an odd kernel are needed"));
  }
  std::vector<LayerSpec> layers;
  for (size_t i = 0; i < channels.size(); ++i) {
    const std::string number = absl::StrCat(i + 1);
    layers.push_back({.kind = Kind::kConv,
                      .name = "conv" + number,
                      .width = channels[i],
                      .kernel = kernel,
                      .padding = kernel / 2,
                      .bias = !batch_norm});
    if (batch_norm) layers.push_back({.kind = Kind::kBatchNorm, .name = "bn" + number});
    layers.push_back({.kind = Kind::kRelu, .name = "relu" + number});
    layers.push_back({.kind = Kind::kMaxPool, .name = "pool" + number, .kernel = 2});
  }
  std::vector<int64_t> widths = hidden;
  widths.push_back(input.classes);
  for (size_t i = 0; i < widths.size(); ++i) {
    if (i > 0) layers.push_back({.kind = Kind::kRelu, .name = absl::StrCat("relu_fc", i)});
    if (dropout != 0) {
      layers.push_back(
          {.kind = Kind::kDropout, .name = absl::StrCat("dropout", i + 1), .rate = dropout});
    }
    layers.push_back(
        {.kind = Kind::kLinear, .name = absl::StrCat("fc", i + 1), .width = widths[i]});
  }
  return Sequence::Make(std::move(layers), input);
}

}  // namespace lockstep::engine
