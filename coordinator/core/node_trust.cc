// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/node_trust.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

void Forget(const TrustRules& rules, absl::Time now, NodeTrust& trust) {
  std::erase_if(trust.failures,
                [&](const NodeFailure& old) { return now - old.time > rules.memory; });
  if (now - trust.until > rules.memory) trust.times = 0;
}

bool IsEnough(const TrustRules& rules, absl::Time now, const NodeTrust& trust) {
  if (trust.times > 0) return true;
  std::set<std::string> jobs, recent_jobs;
  int recent = 0;
  for (const NodeFailure& failure : trust.failures) {
    const bool is_recent = now - failure.time <= rules.window;
    if (failure.job_id.empty()) {
      recent += is_recent;
    } else {
      jobs.insert(failure.job_id);
      if (is_recent) recent_jobs.insert(failure.job_id);
    }
  }
  recent += static_cast<int>(recent_jobs.size());
  return recent >= rules.failures || static_cast<int>(jobs.size()) >= rules.failures;
}

}  // namespace

bool IsLeftOut(const NodeTrust& trust, absl::Time now) { return now < trust.until; }

absl::Duration NoteFailure(const TrustRules& rules, const NodeFailure& failure, NodeTrust& trust) {
  const absl::Time now = failure.time;
  if (IsLeftOut(trust, now)) return absl::ZeroDuration();
  Forget(rules, now, trust);
  if (!trust.failures.empty() && now - trust.failures.back().time <= rules.moment) {
    return absl::ZeroDuration();
  }
  // What one job meets again and again may be the job's.
  std::erase_if(trust.failures, [&](const NodeFailure& old) {
    return !failure.job_id.empty() && old.job_id == failure.job_id;
  });
  trust.failures.push_back(failure);
  if (!IsEnough(rules, now, trust)) return absl::ZeroDuration();
  const int doublings = std::min(trust.times++, 16);
  const absl::Duration span = std::min(rules.longest, rules.first * (int64_t{1} << doublings));
  trust.reason =
      absl::StrCat("it failed ", trust.failures.size(),
                   trust.failures.size() == 1 ? " time" : " times", ", last: ", failure.what);
  trust.until = now + span;
  trust.failures.clear();
  return span;
}

}  // namespace lockstep::coordinator
