// SPDX-License-Identifier: Apache-2.0
// Pooling of images [n, h, w, c]. Attributes: kernel, stride, padding (two extents each). The
// padding takes no part in a maximum; averages count it (as zeros) unless count_padding is 0.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/conv_geometry.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

absl::StatusOr<TensorType> PooledOf(const TensorType& x, const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", x, 4));
  LS_ASSIGN_OR_RETURN(const Window window, WindowOf(attrs));
  for (int axis = 0; axis < 2; ++axis) {
    if (2 * window.padding[axis] > window.kernel[axis]) {
      return absl::InvalidArgumentError(absl::StrCat("padding ", window.padding[axis],
                                                     " is more than half of the window ",
                                                     window.kernel[axis]));
    }
  }
  if (window.dilation[0] != 1 || window.dilation[1] != 1) {
    return absl::InvalidArgumentError("a pooling window has no dilation");
  }
  const int64_t rows = window.Places(0, x.shape[1]), columns = window.Places(1, x.shape[2]);
  if (rows < 1 || columns < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the window ", window.kernel[0], " x ", window.kernel[1],
                     " does not fit into images of ", x.shape[1], " x ", x.shape[2]));
  }
  return TensorType{DType::kF32, {x.shape[0], rows, columns, x.shape[3]}};
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_ASSIGN_OR_RETURN(TensorType y, PooledOf(inputs[0], attrs));
  return std::vector<TensorType>{std::move(y)};
}

absl::StatusOr<std::vector<TensorType>> InferMaxBackward(const std::vector<TensorType>& inputs,
                                                         const Attrs& attrs) {
  LS_ASSIGN_OR_RETURN(const TensorType y, PooledOf(inputs[1], attrs));
  if (inputs[0] != y) return ShapeError("dy", inputs[0], ToString(y));
  return std::vector<TensorType>{inputs[1]};
}

// [n, rows, columns, c] spread over `extents`.
absl::StatusOr<TensorType> SpreadOf(const TensorType& dy, const Attrs& attrs) {
  const Shape extents = attrs.Extents("extents");
  if (extents.size() != 2 || extents[0] < 1 || extents[1] < 1) {
    return absl::InvalidArgumentError("extents must be height and width");
  }
  return TensorType{DType::kF32, {dy.shape[0], extents[0], extents[1], dy.shape.back()}};
}

absl::StatusOr<std::vector<TensorType>> InferAverageBackward(const std::vector<TensorType>& inputs,
                                                             const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0], 4));
  LS_ASSIGN_OR_RETURN(const TensorType dx, SpreadOf(inputs[0], attrs));
  LS_ASSIGN_OR_RETURN(const TensorType y, PooledOf(dx, attrs));
  if (inputs[0] != y) return ShapeError("dy", inputs[0], ToString(y));
  return std::vector<TensorType>{dx};
}

absl::StatusOr<std::vector<TensorType>> InferGlobal(const std::vector<TensorType>& inputs,
                                                    const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[0], 4));
  return std::vector<TensorType>{{DType::kF32, {inputs[0].shape[0], inputs[0].shape[3]}}};
}

absl::StatusOr<std::vector<TensorType>> InferGlobalBackward(const std::vector<TensorType>& inputs,
                                                            const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0]));
  LS_ASSIGN_OR_RETURN(TensorType dx, SpreadOf(inputs[0], attrs));
  return std::vector<TensorType>{std::move(dx)};
}

void MaxGradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kMaxPool2dBackward, {context.dy(), context.input(0)},
                                    context.node.attrs));
}

void AverageGradient(GradientContext& context) {
  const Shape x = context.graph->type(context.input(0)).shape;
  Attrs attrs = context.node.attrs;
  attrs.Set("extents", Shape{x[1], x[2]});
  context.Set(0, context.graph->Add(ops::kAvgPool2dBackward, {context.dy()}, attrs));
}

void GlobalGradient(GradientContext& context) {
  const Shape x = context.graph->type(context.input(0)).shape;
  context.Set(0, context.graph->Add(ops::kGlobalAveragePoolBackward, {context.dy()},
                                    {{"extents", Shape{x[1], x[2]}}}));
}

std::vector<OpCase> Cases() {
  const auto make = [](const Shape& x, Shape kernel, Shape stride, Shape padding) {
    return OpCase{{F32(x)}, {{"kernel", kernel}, {"stride", stride}, {"padding", padding}}};
  };
  return {
      make({1, 1, 1, 1}, {1, 1}, {1, 1}, {0, 0}),  make({2, 6, 8, 3}, {2, 2}, {2, 2}, {0, 0}),
      make({2, 7, 9, 33}, {3, 3}, {2, 2}, {1, 1}), make({1, 5, 8, 31}, {3, 2}, {1, 3}, {1, 0}),
      make({1, 7, 7, 16}, {2, 2}, {2, 2}, {0, 0}), make({1, 9, 5, 4}, {2, 2}, {3, 3}, {0, 0}),
      make({2, 6, 9, 3}, {3, 3}, {3, 3}, {1, 1}),  make({1, 34, 36, 3}, {34, 34}, {1, 1}, {0, 0})};
}

std::vector<OpCase> AverageCases() {
  std::vector<OpCase> cases = Cases();
  cases[2].attrs.Set("count_padding", int64_t{0});
  return cases;
}

std::vector<OpCase> MaxBackwardCases() {
  std::vector<OpCase> cases = Cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].inputs.insert(cases[i].inputs.begin(), *PooledOf(cases[i].inputs[0], cases[i].attrs));
    if (i % 2 == 1) cases[i].attrs.Set("relu", int64_t{1});
  }
  return cases;
}

std::vector<OpCase> AverageBackwardCases() {
  std::vector<OpCase> cases = AverageCases();
  for (OpCase& test : cases) {
    const TensorType x = test.inputs[0];
    test.attrs.Set("extents", Shape{x.shape[1], x.shape[2]});
    test.inputs[0] = *PooledOf(x, test.attrs);
  }
  return cases;
}

std::vector<OpCase> GlobalCases() {
  return {{{F32({1, 1, 1, 1})}, {}}, {{F32({3, 4, 5, 33})}, {}}, {{F32({2, 7, 7, 31})}, {}}};
}
std::vector<OpCase> GlobalBackwardCases() {
  return {{{F32({1, 1})}, {{"extents", Shape{1, 1}}}},
          {{F32({3, 33})}, {{"extents", Shape{4, 5}}}},
          {{F32({2, 31})}, {{"extents", Shape{7, 7}}}}};
}

}  // namespace

const OpDef kMaxPool2d = {
    .name = "max_pool2d",
    .doc = "(x [n,h,w,c]) -> the largest value of each window",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .cut_inputs = 0b1, .cut_outputs = 0b1},
    .infer = Infer,
    .gradient = MaxGradient,
    .flops = InputEach,
    .cases = Cases,
};

const OpDef kMaxPool2dBackward = {
    .name = "max_pool2d_backward",
    .doc = "(dy, x [n,h,w,c]) -> dy at each window's first largest x; relu=1: where x > 0",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.follows = 0b1, .activations = 0b1, .cut_inputs = 0b11, .cut_outputs = 0b1},
    .infer = InferMaxBackward,
    .no_gradient = kFirstOrder,
    .flops = OutputEach,
    .cases = MaxBackwardCases,
};

const OpDef kAvgPool2d = {
    .name = "avg_pool2d",
    .doc = "(x [n,h,w,c]) -> the mean of each window",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .cut_inputs = 0b1, .cut_outputs = 0b1},
    .infer = Infer,
    .gradient = AverageGradient,
    .flops = InputEach,
    .cases = AverageCases,
};

const OpDef kAvgPool2dBackward = {
    .name = "avg_pool2d_backward",
    .doc = "(dy) -> dy spread over each window [n,extents,c]",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .cut_inputs = 0b1, .cut_outputs = 0b1},
    .infer = InferAverageBackward,
    .no_gradient = kFirstOrder,
    .flops = OutputEach,
    .cases = AverageBackwardCases,
};

const OpDef kGlobalAveragePool = {
    .name = "global_average_pool",
    .doc = "(x [n,h,w,c]) -> means over the image [n,c]",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .cut_inputs = 0b1, .cut_outputs = 0b1},
    .infer = InferGlobal,
    .gradient = GlobalGradient,
    .flops = InputEach,
    .cases = GlobalCases,
};

const OpDef kGlobalAveragePoolBackward = {
    .name = "global_average_pool_backward",
    .doc = "(dy [n,c]) -> dy / (h w) at each pixel [n,extents,c]",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .cut_inputs = 0b1, .cut_outputs = 0b1},
    .infer = InferGlobalBackward,
    .no_gradient = kFirstOrder,
    .flops = OutputEach,
    .cases = GlobalBackwardCases,
};

}  // namespace lockstep::engine::ops
