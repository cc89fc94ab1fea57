// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention over sequences of `length` rows, in `heads` heads side by side in a
// row: softmax(q k^T / sqrt(head width)) v. Probabilities are never stored: the forward pass keeps
// the logarithm of each row's sum of exponentials, and the backward pass makes them again (T. Dao
// et al., "FlashAttention", 2022).
//
// Attributes: heads, length, causal (0 or 1), masked (0 or 1: an input says which keys count),
// rate and key (dropout of probabilities, addressed as ops/dropout.cc says; the element is
// ((sample heads + head) length + query) length' + key, length' being length rounded up to 64).
//
// Attribute queries, where it is there and not 0: q has so many rows for each sequence, which are
// its first positions; k and v have all. What they get is what they would get among all.
//
// Attribute keeps_dropout (kKeepsDropoutAttr), with a rate: another output, dropout's bits.
//
// Operands: qkv [b*length, 3c] packed as q, k, v, or q, k, v [b*length, c] each; then `keys` when
// masked: i32 [b, length] (0: the key does not count) or i32 [b] (keys from that position on do
// not count); then the address (i32[4]) when rate > 0. A row without any key gives 0.
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine::ops {

absl::StatusOr<AttentionShape> AttentionShape::Of(const std::vector<TensorType>& inputs,
                                                  const Attrs& attrs, size_t first) {
  AttentionShape shape;
  shape.heads = attrs.Int("heads");
  shape.length = attrs.Int("length");
  shape.causal = attrs.Int("causal") != 0;
  shape.masked = attrs.Int("masked") != 0;
  shape.rate = attrs.Double("rate");
  LS_RETURN_IF_ERROR(CheckRate(attrs));
  shape.keeps_dropout = attrs.Int(kKeepsDropoutAttr) != 0;
  const bool takes_kept = shape.keeps_dropout && first > 0;
  const size_t extra =
      (shape.masked ? 1u : 0u) + (shape.rate > 0 ? 1u : 0u) + (takes_kept ? 1u : 0u);
  if (inputs.size() != first + 1 + extra && inputs.size() != first + 3 + extra) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention has ", inputs.size(), " operands, which fits no form"));
  }
  shape.packed = inputs.size() == first + 1 + extra;
  const size_t matrices = shape.packed ? 1 : 3;
  LS_RETURN_IF_ERROR(CheckMatrix("q", inputs[first]));
  shape.queries = attrs.Int("queries") != 0 ? attrs.Int("queries") : shape.length;
  const size_t keys = first + matrices / 2;  // k, or what is packed
  LS_RETURN_IF_ERROR(CheckMatrix("k", inputs[keys]));
  const int64_t rows = inputs[keys].shape[0], width = inputs[keys].shape[1];
  const int64_t parts = shape.packed ? 3 : 1;
  if (shape.heads < 1 || shape.length < 1 || rows % shape.length != 0 ||
      width % (parts * shape.heads) != 0) {
    return ShapeError("q", inputs[first],
                      absl::StrCat("a multiple of ", shape.length, " rows and of ",
                                   parts * shape.heads, " columns"));
  }
  shape.batch = rows / shape.length;
  const bool all = shape.queries == shape.length;
  if (shape.queries < 1 || shape.queries > shape.length || (shape.packed && !all)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention has ", shape.queries, " queries of ", shape.length,
                     " positions: at most all, and all where q, k and v are one operand"));
  }
  const TensorType q{DType::kF32, {shape.batch * shape.queries, width}};
  if (inputs[first] != q) return ShapeError("q", inputs[first], ToString(q));
  if (!shape.packed && inputs[first + 2] != inputs[keys]) {
    return ShapeError("v", inputs[first + 2], ToString(inputs[keys]));
  }
  shape.width = width / parts;
  if (shape.masked) {
    shape.keys = first + matrices;
    const TensorType& keys = inputs[shape.keys];
    shape.lengths = keys.shape.size() == 1;
    const TensorType by_length{DType::kI32, {shape.batch}};
    const TensorType by_key{DType::kI32, {shape.batch, shape.length}};
    if (keys != by_length && keys != by_key) return ShapeError("keys", keys, ToString(by_key));
  }
  if (shape.rate > 0) {
    shape.address = first + matrices + (shape.masked ? 1 : 0);
    LS_RETURN_IF_ERROR(CheckAddress(inputs[shape.address]));
  }
  if (shape.keeps_dropout && (shape.rate == 0 || !all)) {
    return absl::InvalidArgumentError(
        "attention keeps dropout's bits without dropout, or of a part of the queries");
  }
  if (takes_kept) {
    shape.kept = shape.address + 1;
    if (inputs[shape.kept] != shape.KeptType()) {
      return ShapeError("kept", inputs[shape.kept], ToString(shape.KeptType()));
    }
  }
  return shape;
}

TensorType AttentionShape::KeptType() const {
  const int64_t padded = (length + 63) / 64 * 64;
  return {DType::kI32, {batch, heads, padded / 64, 2 * padded}};
}

namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const std::vector<TensorType>& inputs,
                                              const Attrs& attrs) {
  LS_ASSIGN_OR_RETURN(const AttentionShape shape, AttentionShape::Of(inputs, attrs, 0));
  std::vector<TensorType> outputs = {{DType::kF32, {shape.batch * shape.queries, shape.width}},
                                     {DType::kF32, {shape.batch, shape.heads, shape.queries}}};
  if (shape.keeps_dropout) outputs.push_back(shape.KeptType());
  return outputs;
}

absl::StatusOr<std::vector<TensorType>> InferBackward(const std::vector<TensorType>& inputs,
                                                      const Attrs& attrs) {
  LS_ASSIGN_OR_RETURN(const AttentionShape shape, AttentionShape::Of(inputs, attrs, 3));
  const TensorType y{DType::kF32, {shape.batch * shape.queries, shape.width}};
  const TensorType sums{DType::kF32, {shape.batch, shape.heads, shape.queries}};
  if (inputs[0] != y) return ShapeError("dy", inputs[0], ToString(y));
  if (inputs[1] != y) return ShapeError("y", inputs[1], ToString(y));
  if (inputs[2] != sums) return ShapeError("log_sums", inputs[2], ToString(sums));
  if (shape.packed) return std::vector<TensorType>{inputs[3]};
  return std::vector<TensorType>{inputs[3], inputs[4], inputs[5]};
}

void Gradient(GradientContext& context) {
  std::vector<Value> inputs = {context.dy(), context.output(0), context.output(1)};
  inputs.insert(inputs.end(), context.node.inputs.begin(), context.node.inputs.end());
  const Value made = context.graph->Add(ops::kAttentionBackward, inputs, context.node.attrs);
  if (!made.valid()) return;
  const size_t count = context.graph->node(made.node).outputs.size();
  for (size_t i = 0; i < count; ++i) {
    context.Set(static_cast<int>(i), {made.node, static_cast<int>(i)});
  }
}

// Of a sequence; the operand q is number `first`.
double KeysOf(const std::vector<TensorType>& inputs, size_t first, const TensorType& y,
              const TensorType& sums) {
  const bool packed = inputs[first].shape[1] != y.shape[1];
  const int64_t keys = inputs[packed ? first : first + 1].shape[0] / sums.shape[0];
  return static_cast<double>(keys);
}

// Two products; a causal one is half as much work, which the shapes do not tell: all is counted.
double Flops(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs) {
  return 4.0 * static_cast<double>(outputs[0].elements()) *
         KeysOf(inputs, 0, outputs[0], outputs[1]);
}
double BackwardFlops(const std::vector<TensorType>& inputs, const std::vector<TensorType>&) {
  return 10.0 * static_cast<double>(inputs[0].elements()) * KeysOf(inputs, 3, inputs[0], inputs[2]);
}

struct Form {
  int64_t batch, length, heads, width;
  bool packed, causal;
  int masked;  // 1: by key, 2: by length
  double rate;
  int64_t queries = 0;
};
const Form kForms[] = {
    {1, 1, 1, 1, true, true, 0, 0},        {2, 31, 3, 33, true, true, 0, 0},
    {2, 33, 2, 16, false, false, 1, 0},    {1, 65, 1, 31, true, true, 0, 0.3},
    {3, 7, 2, 10, false, false, 2, 0.5},   {1, 33, 2, 64, true, false, 0, 0},
    {2, 9, 1, 5, false, true, 1, 0},       {1, 150, 1, 20, true, true, 0, 0.3},
    {2, 301, 1, 5, false, false, 2, 0},    {1, 150, 1, 16, true, true, 0, 0.3},
    {2, 70, 2, 16, false, false, 1, 0},    {1, 66, 1, 40, true, true, 2, 0},
    {1, 33, 1, 96, true, true, 0, 0.1},    {3, 33, 2, 20, false, false, 1, 0.3, 1},
    {2, 40, 1, 7, false, false, 2, 0, 1},  {1, 150, 2, 12, false, true, 1, 0.3, 31},
    {2, 40, 2, 16, false, false, 2, 0, 1}, {1, 150, 2, 16, false, true, 1, 0.3, 31}};

std::vector<OpCase> MakeCases(bool backward) {
  std::vector<OpCase> cases;
  for (const Form& f : kForms) {
    OpCase test;
    const int64_t rows = f.batch * f.length;
    const int64_t queries = f.queries != 0 ? f.queries : f.length;
    test.classes = f.masked == 2 ? f.length : 2;
    if (backward) {
      test.inputs = {{DType::kF32, {f.batch * queries, f.width}},
                     {DType::kF32, {f.batch * queries, f.width}},
                     {DType::kF32, {f.batch, f.heads, queries}}};
    }
    const int64_t columns = f.packed ? 3 * f.width : f.width;
    for (int i = 0; i < (f.packed ? 1 : 3); ++i) {
      test.inputs.push_back({DType::kF32, {i == 0 ? f.batch * queries : rows, columns}});
    }
    if (f.masked == 1) test.inputs.push_back({DType::kI32, {f.batch, f.length}});
    if (f.masked == 2) test.inputs.push_back({DType::kI32, {f.batch}});
    if (f.rate > 0) test.inputs.push_back({DType::kI32, {kAddressWords}});
    test.attrs = {{"heads", f.heads},
                  {"length", f.length},
                  {"causal", int64_t{f.causal}},
                  {"masked", int64_t{f.masked > 0}},
                  {"rate", f.rate},
                  {"key", int64_t{12345}}};
    if (f.queries != 0) test.attrs.Set("queries", f.queries);
    cases.push_back(std::move(test));
  }
  return cases;
}
std::vector<OpCase> Cases() { return MakeCases(false); }
std::vector<OpCase> BackwardCases() { return MakeCases(true); }

}  // namespace

const OpDef kAttention = {
    .name = "attention",
    .doc =
        "(qkv or q, k, v, keys?, address?) -> softmax(q k^T / sqrt(d)) v [b*t,c], "
        "log of the sums [b,heads,t], dropout's bits?",
    .min_inputs = 1,
    .max_inputs = 5,
    .half = {.rounded = 0b111, .activations = 0b01},
    .infer = Infer,
    .gradient = Gradient,
    .flops = Flops,
    .cases = Cases,
};

const OpDef kAttentionBackward = {
    .name = "attention_backward",
    .doc = "(dy, y, log_sums, operands of attention..., dropout's bits?) -> dqkv, or dq, dk, dv",
    .min_inputs = 4,
    .max_inputs = 9,
    .half = {.rounded = 0b111011, .activations = 0b111},
    .infer = InferBackward,
    .no_gradient = kFirstOrder,
    .flops = BackwardFlops,
    .cases = BackwardCases,
};

}  // namespace lockstep::engine::ops
