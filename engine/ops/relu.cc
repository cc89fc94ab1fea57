// SPDX-License-Identifier: Apache-2.0
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

// By the output: the input need not be kept.
void Gradient(GradientContext& context) {
  context.Set(0, context.graph->Add(ops::kReluBackward, {context.dy(), context.output()}));
}

std::vector<OpCase> Cases() {
  return {{{{DType::kF32, {1, 1}}}, {}},
          {{{DType::kF32, {31, 33}}}, {}},
          {{{DType::kF32, {2, 1031}}}, {}}};
}
std::vector<OpCase> BackwardCases() {
  return {{{{DType::kF32, {1, 1}}, {DType::kF32, {1, 1}}}, {}},
          {{{DType::kF32, {31, 33}}, {DType::kF32, {31, 33}}}, {}}};
}

}  // namespace

const OpDef kRelu = {
    .name = "relu",
    .doc = "(x) -> max(x, 0)",
    .min_inputs = 1,
    .max_inputs = 1,
    .half = {.follows = 0b1, .activations = 0b1, .elementwise = true},
    .in_place = {{0, 0}},
    .infer = InferSame,
    .gradient = Gradient,
    .flops = OutputEach,
    .cases = Cases,
};

const OpDef kReluBackward = {
    .name = "relu_backward",
    .doc = "(dy, y) -> dy where y > 0, else 0",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.follows = 0b1, .activations = 0b1, .elementwise = true},
    .in_place = {{0, 0}, {1, 0}},
    .infer = InferSame,
    .no_gradient = kFirstOrder,
    .flops = OutputEach,
    .cases = BackwardCases,
};

}  // namespace lockstep::engine::ops
