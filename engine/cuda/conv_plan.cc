// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/conv_plan.h"

#include "common/check.h"
#include "common/status.h"
#include "engine/cuda/gemm.h"

namespace lockstep::engine::cuda {
namespace {

constexpr size_t kBlockBytes = size_t{128} << 20;
constexpr size_t kSmallBlockBytes = size_t{8} << 20;
// What the sums over places are cut for: some blocks for each multiprocessor of a large GPU, each
// with a stretch of places that is worth it.
constexpr int64_t kWantedBlocks = 512;
constexpr int64_t kLeastPlaces = 512;
constexpr int64_t kMostParts = 64;

ConvGeometry GeometryOf(const Graph& graph, const Node& node, ConvPart which) {
  TensorType x = which == ConvPart::kInput
                     ? node.outputs[0]
                     : graph.type(node.inputs[which == ConvPart::kWeight ? 1 : 0]);
  TensorType weight = which == ConvPart::kWeight ? node.outputs[0] : graph.type(node.inputs[1]);
  x.dtype = weight.dtype = DType::kF32;  // a geometry speaks of shapes alone
  const absl::StatusOr<ConvGeometry> geometry = ConvOf(x, weight, node.attrs);
  LS_CHECK(geometry.ok()) << geometry.status();
  return *geometry;
}

}  // namespace

ConvPlan::ConvPlan(const Graph& graph, const Node& node, ConvPart which)
    : part(which), g(GeometryOf(graph, node, which)) {
  const Type first = TypeOf(graph.type(node.inputs[0]).dtype);
  const Type second = TypeOf(graph.type(node.inputs[1]).dtype);
  factors = CommonType(first, second);
  const Window& w = g.window;
  direct = g.taps() == 1 && g.groups == 1 && w.stride[0] == 1 && w.stride[1] == 1 &&
           w.padding[0] == 0 && w.padding[1] == 0;
  // x may be of another type than the factors: making the patches converts it.
  if (which != ConvPart::kInput)
    direct &= (which == ConvPart::kForward ? first : second) == factors;
  pads = !direct && g.groups == 1 && factors != Type::kF32 && patch() % 8 != 0;
  filters_bytes = AlignedBytes(static_cast<size_t>(g.filters * pitch()) *
                               BytesOf(which == ConvPart::kWeight ? Type::kF32 : factors));
  if (which != ConvPart::kForward && first != factors) {
    cast_bytes = AlignedBytes(static_cast<size_t>(g.images * pixels() * g.filters) * sizeof(float));
  }
  const bool half = TypeOf(node.outputs[0].dtype) != Type::kF32;
  if (which == ConvPart::kForward) {
    in_fp32 = half && (factors == Type::kF32 || node.inputs.size() > 2);
  } else if (which == ConvPart::kInput) {
    in_fp32 = half && direct && factors == Type::kF32;
  }
  const size_t size = which == ConvPart::kInput ? sizeof(float) : BytesOf(factors);
  const size_t matrix = direct ? 0 : static_cast<size_t>(pixels() * pitch()) * size;
  const int64_t columns = which == ConvPart::kInput ? g.channels : g.filters;
  const size_t result = in_fp32 ? static_cast<size_t>(pixels() * columns) * sizeof(float) : 0;
  const size_t image = matrix + result;
  PlanImplicit(second, which);
  // Patches are then made only where operands lie at odd places.
  const size_t most = implicit ? kSmallBlockBytes : kBlockBytes;
  block = image == 0 ? g.images
                     : std::min(g.images, std::max(static_cast<int64_t>(most / image), int64_t{1}));
  matrix_bytes = AlignedBytes(static_cast<size_t>(block) * matrix);
  result_bytes = AlignedBytes(static_cast<size_t>(block) * result);
}

int ConvPlan::Alignment(int operands) const {
  // Groups begin at any element, blocks of images at multiples of their pixels.
  const int64_t step = g.groups > 1 ? 1 : block < g.images ? block * pixels() : 64;
  const int64_t low = (step | 64) & -(step | 64);
  return std::min(operands, static_cast<int>(low * static_cast<int64_t>(BytesOf(factors))));
}

void ConvPlan::PlanImplicit(Type second, ConvPart which) {
  implicit = !direct && g.groups == 1 && factors != Type::kF32 && second == factors &&
             g.channels % 8 == 0 && g.filters % 8 == 0;
  if (!implicit) return;
  implicit_bytes = filters_bytes;
  if (which != ConvPart::kWeight) return;
  const int64_t wide = g.channels > 64 ? 128 : 64;
  const int64_t tiles = ((g.filters + 127) / 128) * ((g.channels + wide - 1) / wide) * g.taps();
  const int64_t places = g.images * pixels();
  parts = std::clamp(std::min((kWantedBlocks + tiles - 1) / tiles, places / kLeastPlaces),
                     int64_t{1}, kMostParts);
  implicit_bytes = static_cast<size_t>(parts) *
                   AlignedBytes(static_cast<size_t>(g.filters * patch()) * sizeof(float));
}

FilterArgs ConvPlan::filters() const {
  FilterArgs args;
  args.filters = g.filters;
  args.channels = g.group_channels();
  args.taps = g.taps();
  return args;
}

FilterArgs ConvPlan::padded_filters() const {
  FilterArgs args = filters();
  args.pitch = pitch();
  return args;
}

}  // namespace lockstep::engine::cuda
