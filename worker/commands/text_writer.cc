// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/text_writer.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"
#include "worker/commands/saved_model.h"

namespace lockstep::worker {

using Logits = absl::StatusOr<absl::Span<const float>>;

namespace {

size_t WindowOf(const engine::Plan& plan) {
  const FieldSpec& tokens = plan.spec().input.fields[0];
  return static_cast<size_t>(std::min(plan.decode_positions(), tokens.elements()));
}

}  // namespace

TextWriter::TextWriter(const engine::Plan* plan, engine::Decoding* decoder)
    : plan_(plan), decoder_(decoder), window_(WindowOf(*plan)) {}

Logits TextWriter::Begin(absl::Span<const int32_t> tokens) {
  LS_CHECK(!tokens.empty());
  if (tokens.size() > window_) tokens.remove_prefix(tokens.size() - window_);
  return Restart(tokens);
}

Logits TextWriter::Append(int32_t token) {
  if (kept_.size() < window_) return Decode(token);
  const size_t newer = kept_.size() / 2;  // of at least 1 position, with the token's own
  std::vector<int32_t> tokens(kept_.end() - static_cast<std::ptrdiff_t>(newer), kept_.end());
  tokens.push_back(token);
  if (tokens.size() > kept_.size()) tokens.erase(tokens.begin());
  return Restart(tokens);
}

Logits TextWriter::Restart(absl::Span<const int32_t> tokens) {
  const auto before = tokens.subspan(0, tokens.size() - 1);
  kept_.clear();
  LS_RETURN_IF_ERROR(decoder_->Prefill(before, 0));
  kept_.assign(before.begin(), before.end());
  return Decode(tokens.back());
}

Logits TextWriter::Decode(int32_t token) {
  LS_ASSIGN_OR_RETURN(const absl::Span<const float> logits,
                      decoder_->Decode(token, static_cast<int64_t>(kept_.size())));
  kept_.push_back(token);
  const auto classes = logits.subspan(0, static_cast<size_t>(plan_->spec().input.classes));
  LS_RETURN_IF_ERROR(CheckFinite(classes));
  return classes;
}

}  // namespace lockstep::worker
