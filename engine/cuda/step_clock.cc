// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/step_clock.h"

#include "common/status.h"

namespace lockstep::engine {

absl::Status StepClock::Start(cuda::Device* device) {
  device_ = device;
  for (auto& marks : marks_) {
    for (cuda::Event& mark : marks) {
      LS_ASSIGN_OR_RETURN(mark, device->MakeTimer());
    }
  }
  return absl::OkStatus();
}

void StepClock::Pass(Mark mark) {
  if (mark == kProgramsBegin) {
    newest_ ^= 1;
    ++steps_;
  }
  // A mark that cannot be made is a time that is not known.
  device_->runtime().record_event(marks_[newest_][mark], device_->compute());
}

double StepClock::Between(cuda::Event from, cuda::Event to) const {
  float milliseconds = 0;
  return device_->runtime().elapsed(from, to, &milliseconds) == 0
             ? static_cast<double>(milliseconds)
             : 0;
}

DeviceTimes StepClock::Read() const {
  if (steps_ < 2) return {};
  const auto& last = marks_[newest_ ^ 1];
  DeviceTimes times;
  times.programs = Between(last[kProgramsBegin], last[kProgramsEnd]);
  times.update =
      Between(last[kProgramsEnd], last[kMeasured]) + Between(last[kUpdateBegin], last[kUpdateEnd]);
  times.idle = Between(last[kMeasured], last[kUpdateBegin]) +
               Between(last[kUpdateEnd], marks_[newest_][kProgramsBegin]);
  return times;
}

}  // namespace lockstep::engine
