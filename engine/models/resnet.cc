// SPDX-License-Identifier: Apache-2.0
// Residual networks (He et al., 2015, Deep Residual Learning for Image Recognition) with parameters
// named and initialised as torchvision's: the stride of a bottleneck lies in its 3 x 3 convolution.
// Thread-safety: pure functions.
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/models/model.h"
#include "engine/models/sequence.h"

namespace lockstep::engine {
namespace {

using Kind = LayerSpec::Kind;

struct Depth {
  std::array<int, 4> blocks;
  bool bottleneck;
};

const std::map<int64_t, Depth>& Depths() {
  static const auto* const depths = new std::map<int64_t, Depth>{{18, {{2, 2, 2, 2}, false}},
                                                                 {34, {{3, 4, 6, 3}, false}},
                                                                 {50, {{3, 4, 6, 3}, true}},
                                                                 {101, {{3, 4, 23, 3}, true}}};
  return *depths;
}

LayerSpec Conv(std::string name, int64_t width, int64_t kernel, int64_t stride) {
  return {.kind = Kind::kConv,
          .name = std::move(name),
          .width = width,
          .kernel = kernel,
          .stride = stride,
          .padding = kernel / 2,
          .bias = false,
          .fan_out = true};
}

LayerSpec Relu(std::string name) { return {.kind = Kind::kRelu, .name = std::move(name)}; }

// One block of `width` inner channels; `project` when the shortcut needs a convolution.
LayerSpec Block(const std::string& name, const ResnetSpec& spec, bool bottleneck, int64_t width,
                int64_t stride, bool project) {
  const int64_t out = bottleneck ? 4 * width : width;
  LayerSpec block{.kind = Kind::kResidual, .name = name};
  const std::vector<LayerSpec> convs =
      bottleneck ? std::vector<LayerSpec>{Conv(name + ".conv1", width, 1, 1),
                                          Conv(name + ".conv2", width, 3, stride),
                                          Conv(name + ".conv3", out, 1, 1)}
                 : std::vector<LayerSpec>{Conv(name + ".conv1", width, 3, stride),
                                          Conv(name + ".conv2", out, 3, 1)};
  for (size_t i = 0; i < convs.size(); ++i) {
    const bool last = i + 1 == convs.size();
    block.body.push_back(convs[i]);
    block.body.push_back({.kind = Kind::kBatchNorm,
                          .name = absl::StrCat(name, ".bn", i + 1),
                          .zero = last && spec.zero_init});
    if (!last) block.body.push_back(Relu(absl::StrCat(name, ".relu", i + 1)));
  }
  if (project) {
    block.shortcut.push_back(Conv(name + ".downsample.0", out, 1, stride));
    block.shortcut.push_back({.kind = Kind::kBatchNorm, .name = name + ".downsample.1"});
  }
  return block;
}

// Errors: InvalidArgument for a depth that is not 18, 34, 50 or 101, images that are too small.
absl::StatusOr<std::unique_ptr<Model>> MakeResnet(const ResnetSpec& spec, const InputSpec& input) {
  const auto depth = Depths().find(spec.depth);
  if (depth == Depths().end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("resnet.depth is ", spec.depth, ": use 18, 34, 50 or 101"));
  }
  if (spec.width < 1 || spec.width > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("resnet.width is ", spec.width, ": it must be from 1 to 4096"));
  }
  if (spec.stem != "imagenet" && spec.stem != "cifar") {
    return absl::InvalidArgumentError(
        absl::StrCat("resnet.stem is ", spec.stem, ": use imagenet or cifar"));
  }
  const bool cifar = spec.stem == "cifar";
  std::vector<LayerSpec> layers = {
      cifar ? Conv("conv1", spec.width, 3, 1) : Conv("conv1", spec.width, 7, 2),
      {.kind = Kind::kBatchNorm, .name = "bn1"},
      Relu("relu")};
  if (!cifar) {
    layers.push_back(
        {.kind = Kind::kMaxPool, .name = "maxpool", .kernel = 3, .stride = 2, .padding = 1});
  }
  const bool bottleneck = depth->second.bottleneck;
  int64_t in = spec.width;
  for (size_t stage = 0; stage < 4; ++stage) {
    const int64_t width = spec.width << stage;
    const int64_t out = bottleneck ? 4 * width : width;
    for (int i = 0; i < depth->second.blocks[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      const std::string name = absl::StrCat("layer", stage + 1, ".", i);
      layers.push_back(Block(name, spec, bottleneck, width, stride, stride != 1 || in != out));
      layers.push_back(Relu(name + ".relu"));
      in = out;
    }
  }
  layers.push_back({.kind = Kind::kGlobalAveragePool, .name = "avgpool"});
  layers.push_back({.kind = Kind::kLinear, .name = "fc", .width = input.classes});
  return Sequence::Make(std::move(layers), input);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> ResnetSpec::Make(const InputSpec& input) const {
  return MakeResnet(*this, input);
}

}  // namespace lockstep::engine
