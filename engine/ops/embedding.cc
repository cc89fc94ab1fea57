// SPDX-License-Identifier: Apache-2.0
// Embeddings: rows of a table by token, and by position. A token outside the table gives a row of
// zeros and no gradient.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {
namespace {

absl::Status CheckTokens(const TensorType& tokens) {
  if (tokens.dtype == DType::kI32) return absl::OkStatus();
  return ShapeError("tokens", tokens, "i32");
}

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckTokens(inputs[0]));
  LS_RETURN_IF_ERROR(CheckMatrix("table", inputs[1]));
  return std::vector<TensorType>{{DType::kF32, {inputs[0].elements(), inputs[1].shape[1]}}};
}

absl::StatusOr<std::vector<TensorType>> InferBackward(const std::vector<TensorType>& inputs,
                                                      const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckTokens(inputs[0]));
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[1]));
  if (inputs[1].shape[0] != inputs[0].elements()) {
    return ShapeError("dy", inputs[1], absl::StrCat("f32[", inputs[0].elements(), ",*]"));
  }
  const TensorType table{DType::kF32, {attrs.Int("rows"), inputs[1].shape[1]}};
  if (inputs.size() == 3 && inputs[2] != table) {
    return ShapeError("base", inputs[2], ToString(table));
  }
  return std::vector<TensorType>{table};
}

void Gradient(GradientContext& context) {
  if (!context.wants(1)) return;
  const int64_t rows = context.graph->type(context.input(1)).shape[0];
  context.Set(1, context.graph->Add(ops::kEmbeddingBackward, {context.input(0), context.dy()},
                                    {{"rows", rows}}));
}

absl::StatusOr<std::vector<TensorType>> InferPositions(const std::vector<TensorType>& inputs,
                                                       const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("x", inputs[0]));
  LS_RETURN_IF_ERROR(CheckMatrix("table", inputs[1]));
  const int64_t length = attrs.Int("length");
  if (length < 1 || inputs[0].shape[0] % length != 0) {
    return ShapeError("x", inputs[0], absl::StrCat("a multiple of ", length, " rows"));
  }
  if (inputs[1].shape[0] < length || inputs[1].shape[1] != inputs[0].shape[1]) {
    return ShapeError("table", inputs[1],
                      absl::StrCat("f32[", length, " or more,", inputs[0].shape[1], "]"));
  }
  return std::vector<TensorType>{inputs[0]};
}

absl::StatusOr<std::vector<TensorType>> InferPositionsBackward(
    const std::vector<TensorType>& inputs, const Attrs& attrs) {
  LS_RETURN_IF_ERROR(CheckMatrix("dy", inputs[0]));
  return std::vector<TensorType>{{DType::kF32, {attrs.Int("rows"), inputs[0].shape[1]}}};
}

void PositionsGradient(GradientContext& context) {
  if (context.wants(0)) context.Set(0, context.dy());
  if (!context.wants(1)) return;
  const int64_t rows = context.graph->type(context.input(1)).shape[0];
  context.Set(1,
              context.graph->Add(ops::kAddPositionsBackward, {context.dy()},
                                 {{"length", context.node.attrs.Int("length")}, {"rows", rows}}));
}

double BackwardFlops(const std::vector<TensorType>& inputs, const std::vector<TensorType>&) {
  return static_cast<double>(inputs[1].elements());
}

TensorType I(Shape shape) { return {DType::kI32, std::move(shape)}; }

std::vector<OpCase> Cases() {
  return {{{I({1, 1}), F32({1, 1})}, {}, 1},
          {{I({3, 11}), F32({7, 33})}, {}, 7},
          {{I({33}), F32({31, 16})}, {}, 31}};
}
std::vector<OpCase> BackwardCases() {
  return {{{I({1, 1}), F32({1, 1})}, {{"rows", int64_t{1}}}, 1},
          {{I({3, 11}), F32({33, 33})}, {{"rows", int64_t{7}}}, 7},
          {{I({65}), F32({65, 5}), F32({31, 5})}, {{"rows", int64_t{31}}}, 31},
          {{I({70}), F32({70, 24}), F32({5, 24})}, {{"rows", int64_t{5}}}, 5},
          {{I({9}), F32({9, 264})}, {{"rows", int64_t{11}}}, 11},
          // Tokens that are frequent: GPUs sum their rows in pieces.
          {{I({700}), F32({700, 16}), F32({2, 16})}, {{"rows", int64_t{2}}}, 2},
          {{I({4300}), F32({4300, 3})}, {{"rows", int64_t{2}}}, 2}};
}
std::vector<OpCase> PositionCases() {
  return {{{F32({1, 1}), F32({1, 1})}, {{"length", int64_t{1}}}},
          {{F32({33, 31}), F32({11, 31})}, {{"length", int64_t{11}}}},
          {{F32({6, 33}), F32({31, 33})}, {{"length", int64_t{3}}}},
          {{F32({6, 40}), F32({31, 40})}, {{"length", int64_t{3}}}}};
}
std::vector<OpCase> PositionBackwardCases() {
  return {{{F32({1, 1})}, {{"length", int64_t{1}}, {"rows", int64_t{1}}}},
          {{F32({33, 31})}, {{"length", int64_t{11}}, {"rows", int64_t{11}}}},
          {{F32({6, 33})}, {{"length", int64_t{3}}, {"rows", int64_t{31}}}},
          {{F32({33, 16})}, {{"length", int64_t{3}}, {"rows", int64_t{5}}}}};
}

}  // namespace

const OpDef kEmbedding = {
    .name = "embedding",
    .doc = "(tokens i32[...], table [v,c]) -> the tokens' rows [n,c]",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.activations = 0b1},
    .infer = Infer,
    .gradient = Gradient,
    .cases = Cases,
};

const OpDef kEmbeddingBackward = {
    .name = "embedding_backward",
    .doc =
        "(tokens, dy [n,c], base [rows,c]?) -> base + sums of dy's rows by token [rows,c], in "
        "the order of positions",
    .min_inputs = 2,
    .max_inputs = 3,
    .accumulates = true,
    .in_place = {{2, 0}},
    .infer = InferBackward,
    .no_gradient = kFirstOrder,
    .flops = BackwardFlops,
    .cases = BackwardCases,
};

const OpDef kAddPositions = {
    .name = "add_positions",
    .doc = "(x [b*length,c], table [p,c]) -> x with row t of the table added to position t",
    .min_inputs = 2,
    .max_inputs = 2,
    .half = {.follows = 0b1, .activations = 0b1},
    .in_place = {{0, 0}},
    .infer = InferPositions,
    .gradient = PositionsGradient,
    .flops = OutputEach,
    .cases = PositionCases,
};

const OpDef kAddPositionsBackward = {
    .name = "add_positions_backward",
    .doc = "(dy [b*length,c]) -> sums over the sequences [rows,c], 0 from row `length` on",
    .min_inputs = 1,
    .max_inputs = 1,
    .accumulates = true,
    .infer = InferPositionsBackward,
    .no_gradient = kFirstOrder,
    .flops = InputEach,
    .cases = PositionBackwardCases,
};

}  // namespace lockstep::engine::ops
