// SPDX-License-Identifier: Apache-2.0
#include "worker/commands/token_sampler.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "common/philox.h"
#include "engine/math/math.h"

namespace lockstep::worker {

int32_t TokenSampler::Pick(absl::Span<const float> logits, int64_t index) {
  LS_CHECK(!logits.empty());
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (temperature_ == 0) {
    const auto likeliest = std::max_element(logits.begin(), logits.end());  // the first of equals
    return static_cast<int32_t>(likeliest - logits.begin());
  }
  tokens_.resize(logits.size());
  std::iota(tokens_.begin(), tokens_.end(), 0);
  if (top_k_ > 0 && static_cast<size_t>(top_k_) < tokens_.size()) {
    std::nth_element(tokens_.begin(), tokens_.begin() + top_k_ - 1, tokens_.end(), likelier);
    tokens_.resize(static_cast<size_t>(top_k_));
    std::sort(tokens_.begin(), tokens_.end());
  }
  const auto logit = [&](int32_t token) {
    return static_cast<double>(logits[static_cast<size_t>(token)]);
  };
  double top = logit(tokens_[0]);
  for (const int32_t token : tokens_) top = std::max(top, logit(token));
  sums_.clear();
  double sum = 0;
  for (const int32_t token : tokens_) {
    sum += engine::Exp((logit(token) - top) / temperature_);
    sums_.push_back(sum);
  }
  const auto place = static_cast<uint64_t>(index);
  const auto words =
      Philox4x32({static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), 0, 0},
                 SiteKey(seed_, "generate"));
  const uint64_t bits = uint64_t{words[0]} << 32 | words[1];
  const double uniform = static_cast<double>(bits >> 11) * 0x1.0p-53;  // in [0, 1)
  const auto chosen = std::upper_bound(sums_.begin(), sums_.end(), uniform * sum);
  return chosen == sums_.end() ? tokens_.back()
                               : tokens_[static_cast<size_t>(chosen - sums_.begin())];
}

}  // namespace lockstep::worker
