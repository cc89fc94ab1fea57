// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/json.h"
#include "launcher/follow/text.h"
#include "launcher/verbs/tables.h"
#include "proto/message_json.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kNone = "-";

// "2 x NVIDIA H200", "cpu".
std::string DevicesText(const NodeStatus& node) {
  std::map<std::string, int> counts;
  for (const Device& device : node.devices()) {
    if (device.kind() != "cpu") ++counts[device.name().empty() ? device.kind() : device.name()];
  }
  if (counts.empty()) return "cpu";
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " x ", entry.first);
  });
}

// "up", "drained", "drained, away".
std::string StateText(const NodeStatus& node) {
  const std::string state =
      node.state().empty() ? (node.connected() ? "up" : "away") : node.state();
  return node.connected() || state == "away" ? state : absl::StrCat(state, ", away");
}

// Why a node gets no work, and what its workers do.
std::string Notes(const NodeStatus& node) {
  std::string text;
  if (node.state() != "up" && node.state() != "away" && !node.reason().empty()) {
    absl::StrAppend(&text, node.node_id(), " (", node.state(), "): ", node.reason());
    if (node.has_drain()) {
      const absl::Time since = absl::FromUnixSeconds(node.drain().since().seconds());
      absl::StrAppend(&text, "; asked for by ",
                      node.drain().user().empty() ? "nobody known" : node.drain().user(), " at ",
                      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", since, absl::UTCTimeZone()));
    }
    absl::StrAppend(&text, "\n");
  }
  for (const std::string& moves : node.moves()) absl::StrAppend(&text, "  ", moves, "\n");
  for (const NodeExclusion& exclusion : node.exclusions()) {
    absl::StrAppend(&text, "job ", exclusion.job_id(), " starts no worker on ", node.node_id(),
                    " for now: ", exclusion.reason(), "\n");
  }
  return text;
}

std::vector<std::string> Row(const NodeStatus& node) {
  return {node.node_id(),
          node.host(),
          StateText(node),
          absl::StrCat(node.used_slots(), "/", node.slots()),
          node.cores() == 0 ? kNone : absl::StrCat(node.cores()),
          node.memory() == 0 ? kNone : ShortBytes(node.memory()),
          node.numa().empty() ? kNone : absl::StrCat(node.numa_size()),
          DevicesText(node),
          node.address().empty() ? kNone : node.address(),
          node.has_silent_seconds() ? ShortAge(absl::Seconds(std::max(0.0, node.silent_seconds())))
                                    : kNone,
          node.jobs().empty() ? kNone : absl::StrJoin(node.jobs(), ",")};
}

}  // namespace

std::string NodesTable(const GetClusterResponse& response) {
  const GetClusterResponse shown = Printed(response);
  std::vector<std::vector<std::string>> rows = {{"NODE", "HOST", "STATE", "SLOTS", "CORES",
                                                 "MEMORY", "NUMA", "DEVICES", "ADDRESS", "HEARD",
                                                 "JOBS"}};
  std::string notes;
  for (const NodeStatus& node : shown.nodes()) {
    rows.push_back(Row(node));
    absl::StrAppend(&notes, Notes(node));
  }
  return AlignedTable(rows) + notes;
}

std::string NodeJson(const NodeStatus& node) { return MessageJson(node, Unset::kWritten); }

std::string NodesJson(const GetClusterResponse& response) {
  return JsonObject()
             .Add("schema", 1)
             .Raw("nodes", JsonArrayOf(response.nodes(), NodeJson))
             .Done() +
         "\n";
}

}  // namespace lockstep::launcher
