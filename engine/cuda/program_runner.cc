// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/program_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "engine/cuda/fused_nodes.h"
#include "engine/cuda/kernels.h"
#include "engine/graph/op.h"
#include "engine/passes/launch_groups.h"

namespace lockstep::engine {

absl::StatusOr<CudaProgramRunner> CudaProgramRunner::Make(const Program* program,
                                                          const CudaTarget& target,
                                                          cuda::Device* device,
                                                          std::vector<int> ends) {
  CudaProgramRunner runner(program, device);
  const Graph& graph = program->graph;
  const int count = static_cast<int>(graph.nodes().size());
  runner.kernels_.resize(static_cast<size_t>(count));
  for (int id = 0; id < count; ++id) {
    const Node& node = graph.node(id);
    if (node.op->leaf || node.op->view) continue;
    const KernelOperands& operands = program->memory.operands[static_cast<size_t>(id)];
    LS_ASSIGN_OR_RETURN(runner.kernels_[static_cast<size_t>(id)],
                        CudaKernelOf(*node.op).prepare(graph, node, operands, target));
  }
  runner.last_ = LaunchGroups(graph);
  for (int id = 0; id < count; ++id) {
    const int last = runner.last_[static_cast<size_t>(id)];
    if (last == id) continue;
    LS_ASSIGN_OR_RETURN(runner.groups_[id], cuda::PrepareGroup(*program, id, last, target));
    id = last;
  }
  for (const int end : ends) {
    if (runner.ends_.empty() || end + 1 > runner.ends_.back()) runner.ends_.push_back(end + 1);
  }
  if (runner.ends_.empty() || runner.ends_.back() < count) runner.ends_.push_back(count);
  return runner;
}

CudaProgramRunner::~CudaProgramRunner() {
  for (const auto& [key, segment] : recorded_) {
    if (segment.recording != nullptr) device_->runtime().destroy_graph(segment.recording);
  }
}

absl::Status CudaProgramRunner::RunNode(int id, const CudaContext& context) const {
  const CudaKernel& kernel = kernels_[static_cast<size_t>(id)];
  if (kernel == nullptr) return absl::OkStatus();
  return Checked(kernel(context), id);
}

absl::Status CudaProgramRunner::Checked(cuda::Code code, int id) const {
  if (code == 0) return absl::OkStatus();
  const Node& node = program_->graph.node(id);
  return device_->Check(code, absl::StrCat("node %", id, " ", node.op->name,
                                           node.name.empty() ? "" : " of ", node.name));
}

absl::Status CudaProgramRunner::RunOnce(const CudaContext& context) const {
  for (int id = 0; id < node_count(); ++id) {
    if (program_->memory.RunsOnce(id)) LS_RETURN_IF_ERROR(RunNode(id, context));
  }
  return absl::OkStatus();
}

absl::Status CudaProgramRunner::RunNodes(int segment, const CudaContext& context) const {
  if (segment == 0 && context.once) LS_RETURN_IF_ERROR(RunOnce(context));
  const int begin = segment == 0 ? 0 : ends_[static_cast<size_t>(segment - 1)];
  const int end = ends_[static_cast<size_t>(segment)];
  for (int id = begin; id < end; ++id) {
    if (program_->memory.RunsOnce(id)) continue;
    const int last = last_[static_cast<size_t>(id)];
    const auto group = groups_.find(id);
    if (group == groups_.end() || last >= end) {
      LS_RETURN_IF_ERROR(RunNode(id, context));
      continue;
    }
    LS_RETURN_IF_ERROR(Checked(group->second(context), last));
    id = last;
  }
  return absl::OkStatus();
}

absl::Status CudaProgramRunner::RunAll(const CudaContext& context) const {
  for (int segment = 0; segment < segments(); ++segment) {
    LS_RETURN_IF_ERROR(RunNodes(segment, context));
  }
  return absl::OkStatus();
}

absl::Status CudaProgramRunner::RunSegment(int segment, int variant, const CudaContext& context) {
  Segment& known = recorded_[{segment, variant}];
  const cuda::Runtime& runtime = device_->runtime();
  if (known.runs++ == 0) return RunNodes(segment, context);
  if (known.recording == nullptr) {
    LS_RETURN_IF_ERROR(device_->Check(runtime.begin_capture(context.stream), "recording"));
    const absl::Status run = RunNodes(segment, context);
    cuda::Recording recording = nullptr;
    const cuda::Code ended = runtime.end_capture(context.stream, &recording);
    absl::Status whole = run;
    whole.Update(device_->Check(ended, "recording"));
    // What was recorded before something failed is a part of it.
    if (!whole.ok() && recording != nullptr) runtime.destroy_graph(recording);
    LS_RETURN_IF_ERROR(whole);
    known.recording = recording;
  }
  return device_->Check(runtime.launch_graph(known.recording, context.stream), "a graph");
}

}  // namespace lockstep::engine
