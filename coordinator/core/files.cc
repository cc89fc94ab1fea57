// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/command.h"
#include "coordinator/core/context.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/questions.h"
#include "coordinator/core/trained.h"

namespace lockstep::coordinator {
namespace {

template <typename Nodes>
FileNode* NodeIn(Nodes* nodes, const std::string& node_id) {
  const auto found = std::find_if(nodes->begin(), nodes->end(),
                                  [&](const FileNode& node) { return node.node_id() == node_id; });
  return found == nodes->end() ? nullptr : &*found;
}

FileNode NodeOf(const State& state, const std::string& node_id, const std::string& host,
                absl::Time now) {
  FileNode node;
  node.set_node_id(node_id);
  const auto known = state.nodes.find(node_id);
  node.set_connected(known != state.nodes.end() && InSight(state, known->second, now));
  node.set_host(known != state.nodes.end() ? known->second.host : host);
  return node;
}

}  // namespace

void NoteLeft(const Worker& worker, Job& job) {
  KeepTraining(job);
  if (worker.pid != 0 && !worker.node_id.empty()) job.left_nodes.insert(worker.node_id);
}

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
  // Rank 0's first, also where one that hands over to it has not ended yet.
  for (const bool leaving : {false, true}) {
    for (const Slot& slot : job.slots) {
      if (!slot.worker || slot.worker->leaving() != leaving) continue;
      const Worker& worker = *slot.worker;
      if (worker.node_id.empty()) continue;
      FileNode* node = NodeIn(response.mutable_nodes(), worker.node_id);
      if (node == nullptr) {
        node = response.add_nodes();
        *node = NodeOf(state, worker.node_id, worker.host, now);
      }
      if (worker.finished && !worker.finished->model_path().empty()) node->set_has_model(true);
    }
  }
  for (const std::string& node_id : job.left_nodes) {
    if (NodeIn(response.mutable_nodes(), node_id) != nullptr) continue;
    *response.add_left_nodes() = NodeOf(state, node_id, node_id, now);
  }
  return response;
}

absl::StatusOr<SessionId> FileSender(const State& state, const std::string& reference,
                                     const std::string& node_id, absl::Time now) {
  absl::StatusOr<FindFilesResponse> found = FindFiles(state, reference, now);
  if (!found.ok()) return found.status();
  const FileNode* node = NodeIn(found->mutable_nodes(), node_id);
  if (node == nullptr) node = NodeIn(found->mutable_left_nodes(), node_id);
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
