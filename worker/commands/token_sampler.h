// SPDX-License-Identifier: Apache-2.0
// Draws tokens from logits: a token is a function of (seed, its place, the logits), so the same
// call gives the same text. Thread-safety: confined to one thread.
#ifndef LOCKSTEP_WORKER_COMMANDS_TOKEN_SAMPLER_H_
#define LOCKSTEP_WORKER_COMMANDS_TOKEN_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace lockstep::worker {

class TokenSampler {
 public:
  // A token of probability proportional to exp(logit / temperature), among the `top_k` likeliest
  // (0: all; of equal ones the lower number goes first). Temperature 0 takes the likeliest.
  TokenSampler(double temperature, int64_t top_k, uint64_t seed)
      : temperature_(temperature), top_k_(top_k), seed_(seed) {}

  // The token at place `index` of what is made. REQUIRES: there is a logit.
  int32_t Pick(absl::Span<const float> logits, int64_t index);

 private:
  const double temperature_;
  const int64_t top_k_;
  const uint64_t seed_;
  std::vector<int32_t> tokens_;  // those drawn from, in ascending order
  std::vector<double> sums_;     // of their weights up to each
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_TOKEN_SAMPLER_H_
