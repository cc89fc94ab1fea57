// SPDX-License-Identifier: Apache-2.0
// A text of a saved gpt, one token after another, in a window of as many tokens as a sample of its
// training had: the model may have more positions, which were never trained. Thread-safety:
// confined to one thread.
#ifndef LOCKSTEP_WORKER_COMMANDS_TEXT_WRITER_H_
#define LOCKSTEP_WORKER_COMMANDS_TEXT_WRITER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/engine.h"

namespace lockstep::worker {

class TextWriter {
 public:
  // Both outlive it. REQUIRES: a plan that decodes.
  TextWriter(const engine::Plan* plan, engine::Decoding* decoder);

  // Appends the prompt; of one longer than the window the last ones count. The logits of the token
  // that follows, [classes], are valid until the next call. REQUIRES: `tokens` is not empty.
  // Errors: InvalidArgument for a token that the model does not know; those of CheckFinite.
  absl::StatusOr<absl::Span<const float>> Begin(absl::Span<const int32_t> tokens);
  // Appends a token; as Begin. When the window is full, the newer half of the text moves to the
  // front and the older is forgotten.
  absl::StatusOr<absl::Span<const float>> Append(int32_t token);

 private:
  // Decodes `tokens` from position 0 on, those before the last one at once.
  absl::StatusOr<absl::Span<const float>> Restart(absl::Span<const int32_t> tokens);
  absl::StatusOr<absl::Span<const float>> Decode(int32_t token);

  const engine::Plan* const plan_;
  engine::Decoding* const decoder_;
  const size_t window_;
  std::vector<int32_t> kept_;  // the tokens at positions 0 and on
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_TEXT_WRITER_H_
