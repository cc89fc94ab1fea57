// SPDX-License-Identifier: Apache-2.0
// Numbers with units as job files write them: durations, sizes and "every".
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_MEANING_UNITS_H_
#define LOCKSTEP_JOB_MEANING_UNITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep::job {

// "30s", "500ms", "1h30m", "1.5h", "2d" in nanoseconds; "0" needs no unit. Units: ns, us, ms, s, m,
// h, d. At most 100 years. Errors: InvalidArgument with what is expected.
absl::StatusOr<int64_t> ParseDuration(absl::string_view text);
// The shortest exact form with one unit, such as "90s"; comes back through ParseDuration.
std::string FormatDuration(int64_t nanoseconds);

// "64MiB" (1024-based: KiB, MiB, GiB, TiB), "2GB" (1000-based: kB, KB, MB, GB, TB) or "512B" in
// bytes; "0" needs no unit. Errors: InvalidArgument with what is expected.
absl::StatusOr<int64_t> ParseSize(absl::string_view text);
// The form with the smallest whole number; comes back through ParseSize.
std::string FormatSize(int64_t bytes);

// When something happens: after every `steps` steps, after every `epochs` epochs, every so long by
// the clock, or never. At most one of the three is set.
struct Every {
  int64_t steps = 0;
  int64_t epochs = 0;
  absl::Duration time = absl::InfiniteDuration();

  bool never() const { return steps == 0 && epochs == 0 && !timed(); }
  bool timed() const { return time != absl::InfiniteDuration(); }
  // "500 steps", "1 epoch", "30s" or "never".
  std::string ToString() const;
};
// "500 steps", "1 epoch", "30s" or "never". Errors: InvalidArgument with what is expected.
absl::StatusOr<Every> ParseEvery(absl::string_view text);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_MEANING_UNITS_H_
