// SPDX-License-Identifier: Apache-2.0
#include "engine/models/transformer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "common/status.h"
#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

absl::Status CheckRange(const std::string& what, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, ": it must be from ", low, " to ", high));
}

}  // namespace

const FieldSpec* FindField(const InputSpec& input, const std::string& name) {
  const auto it = std::find_if(input.fields.begin(), input.fields.end(),
                               [&](const FieldSpec& field) { return field.name == name; });
  return it == input.fields.end() ? nullptr : &*it;
}

absl::Status FitToSamples(const std::string& model, const std::string& sources,
                          const InputSpec& input, TransformerSize* size) {
  const FieldSpec* tokens = FindField(input, "tokens");
  if (tokens == nullptr || tokens->type != FieldSpec::Type::kInt32 || tokens->shape.size() != 1 ||
      tokens->limit < 1) {
    return absl::InvalidArgumentError(absl::StrCat(model, " takes samples of tokens: ", sources));
  }
  size->length = tokens->shape[0];
  if (size->context == 0) size->context = size->length;
  if (size->vocab == 0) size->vocab = std::max(tokens->limit, input.classes);
  LS_RETURN_IF_ERROR(CheckRange(model + ".layers", size->layers, 1, 1024));
  LS_RETURN_IF_ERROR(CheckRange(model + ".heads", size->heads, 1, 1024));
  LS_RETURN_IF_ERROR(CheckRange(model + ".width", size->width, 1, 1 << 17));
  LS_RETURN_IF_ERROR(CheckRange(model + ".inner", size->inner, 1, 1 << 20));
  LS_RETURN_IF_ERROR(CheckRange(model + ".context", size->context, size->length, 1 << 20));
  LS_RETURN_IF_ERROR(CheckRange(model + ".vocab", size->vocab, tokens->limit, 1 << 24));
  if (size->width % size->heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        model, ".width ", size->width, " does not divide into ", size->heads, " heads"));
  }
  if (!(size->dropout >= 0 && size->dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(model, ".dropout is ", size->dropout, ": it must be in [0, 1)"));
  }
  return absl::OkStatus();
}

ParameterSpec NormalWeight(const std::string& name, Shape shape, double std) {
  return {name, std::move(shape), ParameterSpec::Init::kNormal, std};
}

ParameterSpec ConstantVector(const std::string& name, int64_t extent, double value) {
  return {name, {extent}, ParameterSpec::Init::kConstant, value, false};
}

int64_t TransformerBuilder::Key(const std::string& site) const {
  return static_cast<int64_t>(SiteKey(inputs_.seed, site));
}

Value TransformerBuilder::Linear(const std::string& name, Value x, bool in_out) {
  Attrs attrs;
  if (in_out) attrs.Set("in_out", int64_t{1});
  return graph_.Add(ops::kLinear, {x, Parameter(name + ".weight"), Parameter(name + ".bias")},
                    attrs, name);
}

Value TransformerBuilder::LayerNorm(const std::string& name, Value x, double eps) {
  return graph_.Add(ops::kLayerNorm, {x, Parameter(name + ".weight"), Parameter(name + ".bias")},
                    {{"eps", eps}}, name);
}

Value TransformerBuilder::Dropout(const std::string& site, Value x) {
  if (!Drops()) return x;
  return graph_.Add(ops::kDropout, {x, inputs_.address},
                    {{"rate", size_.dropout}, {"key", Key(site)}}, site);
}

Value TransformerBuilder::Embed(const std::string& table, Value tokens) {
  return graph_.Add(ops::kEmbedding, {tokens, Parameter(table)}, {}, table);
}

Value TransformerBuilder::AddPositions(const std::string& table, Value x) {
  return graph_.Add(ops::kAddPositions, {x, Parameter(table)}, {{"length", size_.length}}, table);
}

Value TransformerBuilder::Attention(const std::string& site, std::vector<Value> operands,
                                    Value keys, bool causal, int64_t queries) {
  Attrs attrs = {{"heads", size_.heads},
                 {"length", size_.length},
                 {"causal", int64_t{causal}},
                 {"masked", int64_t{keys.valid()}}};
  if (queries != 0 && queries != size_.length) attrs.Set("queries", queries);
  if (keys.valid()) operands.push_back(keys);
  if (Drops()) {
    attrs.Set("rate", size_.dropout);
    attrs.Set("key", Key(site));
    operands.push_back(inputs_.address);
  }
  return graph_.Add(ops::kAttention, std::move(operands), std::move(attrs), site);
}

}  // namespace lockstep::engine
