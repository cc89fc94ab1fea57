// SPDX-License-Identifier: Apache-2.0
#include "job/meaning/schedule.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep::job {

std::vector<std::string> ScheduleWarnings(const Schedule& schedule, int64_t total_steps) {
  const std::string last = absl::StrCat("the run's last step is ", total_steps);
  const int64_t warmup = schedule.warmup_steps();
  if (warmup > total_steps) {
    return {absl::StrCat("'train.schedule.warmup_steps': the warm-up of ", warmup,
                         " steps does not come to its end, as ", last)};
  }
  // Both are counted from the end of the warm-up. After the last step the rate is of no use.
  const int64_t left = total_steps - warmup;
  const std::string so = warmup == 0
                             ? absl::StrCat(", as ", last)
                             : absl::StrCat(", as ", last, ", ", left, " after the warm-up");
  if (schedule.step().every() > 0 && schedule.step().every() >= left) {
    return {absl::StrCat("'train.schedule.step.every': ", schedule.step().every(),
                         " changes nothing", so)};
  }
  std::vector<int64_t> late;
  for (const int64_t milestone : schedule.step().milestones()) {
    if (milestone >= left) late.push_back(milestone);
  }
  if (late.empty()) return {};
  return {absl::StrCat("'train.schedule.step.milestones': ", absl::StrJoin(late, ", "),
                       late.size() == 1 ? " changes nothing" : " change nothing", so)};
}

}  // namespace lockstep::job
