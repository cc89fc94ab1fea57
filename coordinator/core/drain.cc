// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/drain.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/already_so.h"
#include "coordinator/core/access.h"
#include "coordinator/core/nodes.h"

namespace lockstep::coordinator {
namespace {

constexpr size_t kLongestText = 1000;

absl::Status CheckText(const std::string& what, const std::string& text) {
  const bool fits =
      text.size() <= kLongestText && std::none_of(text.begin(), text.end(), [](char c) {
        return absl::ascii_iscntrl(static_cast<unsigned char>(c));
      });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", kLongestText, " characters at most, and no control characters"));
}

absl::Status SeveralMeant(const std::string& what, const std::vector<const Node*>& nodes) {
  constexpr size_t kListed = 10;
  std::string text = absl::StrCat(what, " ", nodes.size(), " nodes; say which by its id:");
  for (size_t i = 0; i < std::min(nodes.size(), kListed); ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", nodes[i]->id);
  }
  if (nodes.size() > kListed) absl::StrAppend(&text, " and ", nodes.size() - kListed, " more");
  return absl::FailedPreconditionError(text);
}

// Those that have work there look where it can go, and those that wait for a node look again.
void LookAgain(Context& context, const Node& node) {
  context.changed_nodes.insert(node.id);
  context.schedule = true;
  for (const auto& [id, job] : context.state.jobs) {
    if (job.final()) continue;
    const bool here = std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
      return slot.worker && slot.worker->node_id == node.id;
    });
    if (here) context.touched_jobs.insert(id);
  }
}

}  // namespace

absl::StatusOr<std::string> FindNodeId(const State& state, const std::string& reference) {
  if (state.nodes.count(reference) != 0) return reference;
  std::vector<const Node*> named, begin;
  for (const auto& [id, node] : state.nodes) {
    if (node.host == reference) named.push_back(&node);
    if (!reference.empty() && absl::StartsWith(id, reference)) begin.push_back(&node);
  }
  if (named.size() == 1) return named.front()->id;
  if (named.size() > 1)
    return SeveralMeant(absl::StrCat("'", reference, "' is the host of"), named);
  if (begin.size() == 1) return begin.front()->id;
  if (begin.size() > 1) {
    return SeveralMeant(absl::StrCat("'", reference, "' begins the ids of"), begin);
  }
  return absl::NotFoundError(absl::StrCat("there is no node '", reference,
                                          "'; 'launcher nodes' shows the ids and hosts of all"));
}

absl::Status DrainNode(Context& context, const DrainRequested& event) {
  if (absl::Status may = CheckCall("Coordinator/DrainNode", event.by); !may.ok()) return may;
  if (absl::Status status = CheckText("the reason", event.reason); !status.ok()) return status;
  if (absl::Status status = CheckText("the user's name", event.user); !status.ok()) return status;
  const absl::StatusOr<std::string> id = FindNodeId(context.state, event.node);
  if (!id.ok()) return id.status();
  Node& node = context.state.nodes.at(*id);
  const absl::Time since = node.drain ? node.drain->since : context.now;
  SetDrain(context.state, node, DrainOrder{event.reason, event.user, since});
  LookAgain(context, node);
  return absl::OkStatus();
}

absl::Status UndrainNode(Context& context, const UndrainRequested& event) {
  if (absl::Status may = CheckCall("Coordinator/UndrainNode", event.by); !may.ok()) return may;
  const absl::StatusOr<std::string> id = FindNodeId(context.state, event.node);
  if (!id.ok()) return id.status();
  Node& node = context.state.nodes.at(*id);
  if (!node.drain && !IsLeftOut(node.trust, context.now)) {
    return AlreadySoError(absl::StrCat("node ", node.id, " is neither drained nor left out"));
  }
  SetDrain(context.state, node, std::nullopt);
  node.trust = NodeTrust{};
  LookAgain(context, node);
  return absl::OkStatus();
}

}  // namespace lockstep::coordinator
