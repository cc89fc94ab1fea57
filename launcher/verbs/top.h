// SPDX-License-Identifier: Apache-2.0
// `launcher top`: what the GPUs and the workers of a coordinator do now, as tables.
// Thread-safety: RunTop is called by main; the others are pure functions.
#ifndef LOCKSTEP_LAUNCHER_VERBS_TOP_H_
#define LOCKSTEP_LAUNCHER_VERBS_TOP_H_

#include <string>
#include <vector>

#include "launcher/cli/arguments.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// The figures of one moment.
struct TopFigures {
  GetClusterResponse cluster;
  std::vector<DescribeJobResponse>
      jobs;  // those that have not ended, or the one that was asked for
};

// Shows the figures: on a terminal again and again until Ctrl-C, else, or with -o, once. Blocks.
int RunTop(const TopArgs& args);

// A table of GPUs (none without any) and one of the workers of each job.
std::string TopTable(const TopFigures& figures);
// One line: {"schema":1,"nodes":[...],"jobs":[...]}.
std::string TopJson(const TopFigures& figures);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_TOP_H_
