// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/command.h"
#include "coordinator/core/context.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/questions.h"

namespace lockstep::coordinator {
namespace {

FileNode* NodeIn(FindFilesResponse& response, const std::string& node_id) {
  for (FileNode& node : *response.mutable_nodes()) {
    if (node.node_id() == node_id) return &node;
  }
  return nullptr;
}

FileNode& AddNode(const State& state, const std::string& node_id, const std::string& host,
                  absl::Time now, FindFilesResponse& response) {
  FileNode& node = *response.add_nodes();
  node.set_node_id(node_id);
  const auto known = state.nodes.find(node_id);
  node.set_connected(known != state.nodes.end() && InSight(state, known->second, now));
  node.set_host(known != state.nodes.end() ? known->second.host : host);
  return node;
}

}  // namespace

absl::StatusOr<FindFilesResponse> FindFiles(const State& state, const std::string& reference,
                                            absl::Time now) {
  const absl::StatusOr<std::string> id = FindJobId(state, reference);
  if (!id.ok()) return id.status();
  const Job& job = state.jobs.at(*id);
  FindFilesResponse response;
  response.set_job_id(*id);
  response.set_run_dir(job.run_dir);
  response.set_submit_dir(job.request.submit_dir());
  response.set_model_path(job.result.model_path());
  response.set_command(IsCommand(job));
  for (const Slot& slot : job.slots) {
    const std::string& node_id = slot.worker ? slot.worker->node_id : slot.node_id;
    if (node_id.empty()) continue;
    FileNode* node = NodeIn(response, node_id);
    if (node == nullptr) {
      node = &AddNode(state, node_id, slot.worker ? slot.worker->host : node_id, now, response);
    }
    const bool wrote =
        slot.worker && slot.worker->finished && !slot.worker->finished->model_path().empty();
    if (wrote) node->set_has_model(true);
  }
  for (const std::string& node_id : job.left_nodes) {
    if (NodeIn(response, node_id) != nullptr) continue;
    AddNode(state, node_id, node_id, now, response).set_left(true);
  }
  return response;
}

absl::StatusOr<SessionId> FileSender(const State& state, const std::string& reference,
                                     const std::string& node_id, absl::Time now) {
  absl::StatusOr<FindFilesResponse> found = FindFiles(state, reference, now);
  if (!found.ok()) return found.status();
  const FileNode* const node = NodeIn(*found, node_id);
  if (node == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no worker of job ", found->job_id(), " was on node ", node_id));
  }
  if (!node->connected()) {
    return absl::UnavailableError(
        absl::StrCat("host ", node->host(), " (node ", node_id,
                     ") is away: its files can be fetched when its agent is back"));
  }
  return state.nodes.at(node_id).session;
}

}  // namespace lockstep::coordinator
