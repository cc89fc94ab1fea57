// SPDX-License-Identifier: Apache-2.0
// `launcher top`: what the GPUs and the workers of a coordinator do now, as tables.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_VERBS_TOP_H_
#define LOCKSTEP_LAUNCHER_VERBS_TOP_H_

#include <string>
#include <vector>

#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// The figures of one moment.
struct TopFigures {
  GetClusterResponse cluster;
  std::vector<DescribeJobResponse>
      jobs;  // those that have not ended, or the one that was asked for
};

// A table of GPUs (none without any) and one of the workers of each job.
std::string TopTable(const TopFigures& told);
// One line: {"schema":1,"nodes":[...],"jobs":[...]}.
std::string TopJson(const TopFigures& figures);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_TOP_H_
