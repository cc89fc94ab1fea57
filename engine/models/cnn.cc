// SPDX-License-Identifier: Apache-2.0
#include "engine/models/cnn.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/models/sequence.h"

namespace lockstep::engine {

using Kind = LayerSpec::Kind;

absl::StatusOr<std::unique_ptr<Model>> MakeCnn(const CnnSpec& spec, const InputSpec& input) {
  if (spec.channels.empty() || spec.kernel < 1 || spec.kernel % 2 == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cnn: ", spec.channels.size(), " stages with a kernel of ", spec.kernel,
                     ": at least one stage and an odd kernel are needed"));
  }
  std::vector<LayerSpec> layers;
  for (size_t i = 0; i < spec.channels.size(); ++i) {
    const std::string number = absl::StrCat(i + 1);
    layers.push_back({.kind = Kind::kConv,
                      .name = "conv" + number,
                      .width = spec.channels[i],
                      .kernel = spec.kernel,
                      .padding = spec.kernel / 2,
                      .bias = !spec.batch_norm});
    if (spec.batch_norm) layers.push_back({.kind = Kind::kBatchNorm, .name = "bn" + number});
    layers.push_back({.kind = Kind::kRelu, .name = "relu" + number});
    layers.push_back({.kind = Kind::kMaxPool, .name = "pool" + number, .kernel = 2});
  }
  std::vector<int64_t> widths = spec.hidden;
  widths.push_back(input.classes);
  for (size_t i = 0; i < widths.size(); ++i) {
    if (i > 0) layers.push_back({.kind = Kind::kRelu, .name = absl::StrCat("relu_fc", i)});
    if (spec.dropout != 0) {
      layers.push_back(
          {.kind = Kind::kDropout, .name = absl::StrCat("dropout", i + 1), .rate = spec.dropout});
    }
    layers.push_back(
        {.kind = Kind::kLinear, .name = absl::StrCat("fc", i + 1), .width = widths[i]});
  }
  return Sequence::Make(std::move(layers), input);
}

}  // namespace lockstep::engine
