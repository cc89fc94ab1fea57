// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/stopwatch.h"

#include <algorithm>

#include "common/check.h"
#include "common/status.h"

namespace lockstep::engine::cuda {
namespace {

constexpr int kRounds = 3;
constexpr float kRoundMilliseconds = 0.5f;
constexpr int kMostRuns = 50;
// A way must beat an earlier one by as much: below it chance decides.
constexpr float kClear = 0.98f;

}  // namespace

absl::StatusOr<Stopwatch> Stopwatch::Make(Device* device) {
  Stopwatch made(device);
  for (Event* event : {&made.begin_, &made.end_}) {
    LS_ASSIGN_OR_RETURN(*event, device->MakeTimer());
  }
  return made;
}

absl::StatusOr<float> Stopwatch::Time(const Way& way, int runs, const char* what) {
  const Runtime& runtime = device_->runtime();
  Code code = runtime.record_event(begin_, device_->compute());
  for (int i = 0; i < runs && code == 0; ++i) code = way();
  if (code == 0) code = runtime.record_event(end_, device_->compute());
  if (code == 0) code = runtime.wait_event(end_);
  float milliseconds = 0;
  if (code == 0) code = runtime.elapsed(begin_, end_, &milliseconds);
  LS_RETURN_IF_ERROR(device_->Check(code, what));
  return milliseconds / static_cast<float>(runs);
}

absl::StatusOr<Stopwatch::Result> Stopwatch::Compare(const std::vector<Way>& ways,
                                                     const char* what) {
  LS_CHECK(!ways.empty());
  LS_ASSIGN_OR_RETURN(const float once, Time(ways[0], 1, what));
  const int runs =
      std::clamp(static_cast<int>(kRoundMilliseconds / std::max(once, 1e-3f)), 1, kMostRuns);
  Result result;
  result.milliseconds.resize(ways.size());
  // In turns, so that a change of the clock rate meets all of them.
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      LS_ASSIGN_OR_RETURN(const float each, Time(ways[i], runs, what));
      float& best = result.milliseconds[i];
      best = round == 0 ? each : std::min(best, each);
    }
  }
  for (size_t i = 1; i < ways.size(); ++i) {
    if (result.milliseconds[i] < kClear * result.milliseconds[result.quickest]) result.quickest = i;
  }
  return result;
}

}  // namespace lockstep::engine::cuda
