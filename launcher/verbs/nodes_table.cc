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

std::vector<std::string> Row(const NodeStatus& node) {
  return {node.node_id(),
          node.host(),
          node.connected() ? "up" : "away",
          absl::StrCat(node.used_slots(), "/", node.slots()),
          node.cores() == 0 ? kNone : absl::StrCat(node.cores()),
          node.memory() == 0 ? kNone : ShortBytes(node.memory()),
          DevicesText(node),
          node.address().empty() ? kNone : node.address(),
          ShortAge(absl::Seconds(std::max(0.0, node.silent_seconds()))),
          node.jobs().empty() ? kNone : absl::StrJoin(node.jobs(), ",")};
}

}  // namespace

std::string NodesTable(const GetClusterResponse& response) {
  const GetClusterResponse shown = Printed(response);
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "HOST", "STATE", "SLOTS", "CORES", "MEMORY", "DEVICES", "ADDRESS", "HEARD", "JOBS"}};
  std::string left_out;
  for (const NodeStatus& node : shown.nodes()) {
    rows.push_back(Row(node));
    for (const NodeExclusion& exclusion : node.exclusions()) {
      absl::StrAppend(&left_out, "job ", exclusion.job_id(), " starts no worker on ",
                      node.node_id(), " for now: ", exclusion.reason(), "\n");
    }
  }
  return AlignedTable(rows) + left_out;
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
