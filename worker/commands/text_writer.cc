// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/text_writer.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"

namespace lockstep::worker {

using Logits = absl::StatusOr<absl::Span<const float>>;

Logits TextWriter::Begin(absl::Span<const int32_t> tokens) {
  LS_CHECK(!tokens.empty());
  const auto positions = static_cast<size_t>(plan_->decode_positions());
  if (tokens.size() > positions) tokens.remove_prefix(tokens.size() - positions);
  return Restart(tokens);
}

Logits TextWriter::Append(int32_t token) {
  if (static_cast<int64_t>(kept_.size()) < plan_->decode_positions()) return Decode(token);
  const size_t newer = kept_.size() / 2;  // of at least 1 position, with the token's own
  std::vector<int32_t> tokens(kept_.end() - static_cast<std::ptrdiff_t>(newer), kept_.end());
  tokens.push_back(token);
  if (tokens.size() > kept_.size()) tokens.erase(tokens.begin());
  return Restart(tokens);
}

Logits TextWriter::Restart(absl::Span<const int32_t> tokens) {
  kept_.clear();
  Logits logits;
  for (const int32_t token : tokens) {
    logits = Decode(token);
    if (!logits.ok()) return logits;
  }
  return logits;
}

Logits TextWriter::Decode(int32_t token) {
  LS_ASSIGN_OR_RETURN(const absl::Span<const float> logits,
                      decoder_->Decode(token, static_cast<int64_t>(kept_.size())));
  kept_.push_back(token);
  return logits.subspan(0, static_cast<size_t>(plan_->spec().input.classes));
}

}  // namespace lockstep::worker
