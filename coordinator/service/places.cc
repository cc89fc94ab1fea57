// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/places.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {

std::unique_ptr<Places::Place> Places::Take() {
  absl::MutexLock lock(&mu_);
  const absl::Time now = clock_->Now();
  if (taken_.size() < most_) {
    taken_.push_back({now});
    return std::make_unique<Place>(this, std::prev(taken_.end()));
  }
  const bool one_leaves =
      std::any_of(taken_.begin(), taken_.end(), [](const Taken& taken) { return taken.gives_way; });
  Taken& oldest = taken_.front();
  if (!one_leaves && now >= oldest.since + share_) oldest.gives_way = true;
  return nullptr;
}

Places::Place::~Place() {
  absl::MutexLock lock(&places_->mu_);
  places_->taken_.erase(taken_);
}

absl::Status Places::Place::status() const {
  absl::MutexLock lock(&places_->mu_);
  if (!taken_->gives_way) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the transfer took more than ", absl::FormatDuration(places_->share_),
                   ", and others wait for the coordinator to carry theirs; try again in a while"));
}

}  // namespace lockstep::coordinator
