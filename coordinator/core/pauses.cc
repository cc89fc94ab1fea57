// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/pauses.h"

#include <algorithm>

namespace lockstep::coordinator {

void Pauses::Add(absl::Duration length, absl::Time now) {
  if (began_ > now) {
    began_ += length;  // what is still to come does so later
    return;
  }
  // What counts for nobody already is taken out once.
  if (!pauses_.empty()) length = std::min(length, now - pauses_.back().end);
  total_ += length;
  if (!pauses_.empty() && now - length == pauses_.back().end) {
    pauses_.back().end = now;
    pauses_.back().length += length;
  } else {
    pauses_.push_back({now, length});
  }
  // The longest wait from before that one has ended, whatever paused since.
  while (now >= pauses_.front().end + kLongestWait + total_) {
    total_ -= pauses_.front().length;
    pauses_.pop_front();
  }
}

absl::Time Pauses::End(absl::Time began, absl::Duration wait) const {
  began = std::max(began, began_);
  absl::Duration paused;
  for (auto pause = pauses_.rbegin(); pause != pauses_.rend() && pause->end > began; ++pause) {
    paused += std::min(pause->length, pause->end - began);
  }
  return began + wait + paused;
}

}  // namespace lockstep::coordinator
