// SPDX-License-Identifier: Apache-2.0
#include "launcher/local_run/hosts_of_run.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/client/token.h"
#include "job/meaning/workers.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(2);
constexpr absl::Duration kLeaveWithin = absl::Seconds(5);
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<std::string> TokenOfRun(const CoordinatorArgs& args) {
  if (!args.token_file.empty()) return coordinator::ReadToken(args.token_file);
  const bool plain = std::all_of(args.token.begin(), args.token.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (!plain) {
    return absl::FailedPreconditionError(
        "LOCKSTEP_TOKEN is not of plain letters, digits and signs");
  }
  if (!args.token.empty()) return args.token;
  return absl::FailedPreconditionError(
      "a run over several hosts needs a token that all of them share: put one into a file that "
      "only "
      "you can read and name it with --token-file, or set LOCKSTEP_TOKEN");
}

int SlotsOfHost(const JobSpec& spec, bool over_hosts) {
  if (!over_hosts) return job::MostProcesses(spec);
  const std::vector<int> ranks = job::RanksPerNode(spec);
  return *std::max_element(ranks.begin(), ranks.end()) + job::MostProcesses(spec) -
         job::MostWorkers(spec);
}

void AwaitGuestsEnd(coordinator::Client* client) {
  const absl::Time deadline = Clock::Real()->Now() + kLeaveWithin;
  while (Clock::Real()->Now() < deadline) {
    const auto cluster = client->GetCluster(kCallTimeout);
    if (!cluster.ok()) return;
    const auto there = std::count_if(cluster->nodes().begin(), cluster->nodes().end(),
                                     [](const NodeStatus& node) { return node.connected(); });
    if (there <= 1) return;  // this host itself
    Clock::Real()->Sleep(kLookAgain);
  }
}

}  // namespace lockstep::launcher
