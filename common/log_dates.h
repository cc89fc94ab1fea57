// SPDX-License-Identifier: Apache-2.0
// Dates in the log of a process that runs for days, whose lines have the time of day alone.
#ifndef LOCKSTEP_COMMON_LOG_DATES_H_
#define LOCKSTEP_COMMON_LOG_DATES_H_

#include <optional>
#include <string>

#include "absl/time/civil_time.h"
#include "absl/time/time.h"

namespace lockstep {

// From now on a line with the date comes before the next line of the log (log.h) and before the
// first one of each new day, at every level. Thread-safety: thread-safe.
void LogDates();

// Which lines those are. Thread-safety: thread-compatible.
class LogCalendar {
 public:
  // Days are those of this zone, as the times of lines are.
  explicit LogCalendar(absl::TimeZone zone) : zone_(zone) {}

  // Returns what is to be said before a line of this time: its date ("Monday, 2026-11-30,
  // UTC+01:00"), if it is another one than that of the line before, or there was none; else empty.
  std::string Before(absl::Time now);

 private:
  const absl::TimeZone zone_;
  std::optional<absl::CivilDay> day_;  // of the newest line
};

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_LOG_DATES_H_
