// SPDX-License-Identifier: Apache-2.0
// What became of the faults of `launcher chaos`: which of them happened, and when. Workers mark
// each in the run's folder just before it happens (common/chaos.h). Thread-safety: pure but for the
// files that it reads.
#ifndef LOCKSTEP_LAUNCHER_LOCAL_RUN_CHAOS_REPORT_H_
#define LOCKSTEP_LAUNCHER_LOCAL_RUN_CHAOS_REPORT_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/chaos.h"

namespace lockstep::launcher {

struct Suffered {
  chaos::Injection injection;
  int64_t time_nanos = 0;  // since the epoch; 0: it did not happen
  int64_t pid = 0;
};

// Those of the job, in the order of `injections`; of them the `refused` ones did not happen,
// whatever the folder says. One that makes a worker slow always happens and has no time.
std::vector<Suffered> ReadSuffered(const std::string& run_dir, const std::string& job_id,
                                   const std::vector<chaos::Injection>& injections,
                                   const std::set<int>& refused);
// Adds them to the job's result, which is a JSON object in a line, or text.
void AddSuffered(const std::vector<Suffered>& all, bool json, std::string* result);
// A line for each that did not happen, and how many did; ends with a line feed.
std::string SufferedText(const std::vector<Suffered>& all);
// [{"fault":"kill rank:2@step:50","happened":true,"time":1700000000.25,"pid":12}]
std::string SufferedJson(const std::vector<Suffered>& all);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_LOCAL_RUN_CHAOS_REPORT_H_
