// SPDX-License-Identifier: Apache-2.0
#include "worker/profile/step_profiler.h"

#include <unistd.h>

#include <chrono>

namespace lockstep::worker {
namespace {

// Of one rank; the table goes on when the trace is full.
constexpr size_t kMaxEvents = 200000;

int LaneOf(StepPhase phase) {
  return phase == StepPhase::kReduce || phase == StepPhase::kCommitWait ? 1 : 0;
}

}  // namespace

int64_t MonotonicNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const char* Name(StepPhase phase) {
  switch (phase) {
    case StepPhase::kDataWait:
      return "data wait";
    case StepPhase::kCompute:
      return "compute";
    case StepPhase::kCommitWait:
      return "commit wait";
    case StepPhase::kReduce:
      return "reduce";
    case StepPhase::kUpdate:
      return "update";
  }
  return "?";
}

StepProfiler::StepProfiler(const engine::Plan* plan, StepRange range)
    : range_(range),
      nodes_(plan->Nodes(engine::ProgramKind::kTraining)),
      threads_(plan->spec().threads),
      arena_bytes_(plan->arena_bytes()),
      node_sums_(nodes_.size()) {
  events_.reserve(4096);
}

void StepProfiler::BeginStep(int64_t step, engine::Executor* executor) {
  active_ = range_.Contains(step);
  executor_ = executor;
  executor->Observe(active_ ? this : nullptr);
  step_ = step;
  commit_wait_ = 0;
  if (active_) step_begin_ = MonotonicNanos();
}

void StepProfiler::EndStep() {
  if (!active_) return;
  steps_.Add(MonotonicNanos() - step_begin_);
  active_ = false;
  executor_->Observe(nullptr);
}

void StepProfiler::Keep(const Event& event) {
  if (events_.size() < kMaxEvents) {
    events_.push_back(event);
  } else {
    ++dropped_;
  }
}

void StepProfiler::BeforeNode(engine::ProgramKind, int) { node_begin_ = MonotonicNanos(); }

absl::Status StepProfiler::AfterNode(engine::ProgramKind program, int node,
                                     absl::Span<const engine::TensorView>) {
  const int64_t nanos = MonotonicNanos() - node_begin_;
  if (program != engine::ProgramKind::kTraining) return absl::OkStatus();
  node_sums_[static_cast<size_t>(node)].Add(nanos);
  Keep({node, node_begin_, nanos, step_});
  return absl::OkStatus();
}

void StepProfiler::RecordPhase(StepPhase phase, int64_t begin, int64_t end) {
  int64_t nanos = end - begin;
  Keep({-1 - static_cast<int>(phase), begin, nanos, step_});
  // The wait for the others' commit lies inside the computation and is not part of it.
  if (phase == StepPhase::kCommitWait) commit_wait_ += nanos;
  if (phase == StepPhase::kCompute) {
    nanos -= commit_wait_;
    commit_wait_ = 0;
  }
  phases_[static_cast<size_t>(phase)].Add(nanos);
}

void StepProfiler::RecordBatch(int thread, int64_t step, int64_t begin, int64_t end) {
  if (!range_.Contains(step)) return;
  absl::MutexLock lock(&mu_);
  if (batches_.size() < kMaxEvents) batches_.push_back({thread, begin, end - begin, step});
}

RankProfile StepProfiler::Result(int rank) {
  RankProfile result;
  result.set_rank(rank);
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) == 0) result.set_host(host);
  result.set_threads(threads_);
  result.set_steps(steps_.calls);
  result.set_step_nanos(steps_.nanos);
  result.set_arena_bytes(static_cast<int64_t>(arena_bytes_));
  result.set_events_dropped(dropped_);
  for (int i = 0; i < kStepPhases; ++i) {
    PhaseTime* phase = result.add_phases();
    phase->set_name(Name(static_cast<StepPhase>(i)));
    phase->set_calls(phases_[static_cast<size_t>(i)].calls);
    phase->set_nanos(phases_[static_cast<size_t>(i)].nanos);
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (node_sums_[i].calls == 0) continue;
    NodeTime* node = result.add_nodes();
    node->set_op(nodes_[i].op);
    node->set_name(nodes_[i].name);
    node->set_text(nodes_[i].text);
    node->set_calls(node_sums_[i].calls);
    node->set_nanos(node_sums_[i].nanos);
    node->set_flops(nodes_[i].flops);
    node->set_bytes(nodes_[i].bytes);
    node->set_live_bytes(static_cast<int64_t>(nodes_[i].live_bytes));
  }
  const auto add = [&](const std::string& name, int lane, int64_t begin, int64_t nanos,
                       int64_t step) {
    TraceEvent* event = result.add_events();
    event->set_name(name);
    event->set_lane(lane);
    event->set_begin(begin);
    event->set_nanos(nanos);
    event->set_step(step);
  };
  for (const Event& event : events_) {
    if (event.name < 0) {
      const auto phase = static_cast<StepPhase>(-1 - event.name);
      add(Name(phase), LaneOf(phase), event.begin, event.nanos, event.step);
      continue;
    }
    const engine::NodeInfo& node = nodes_[static_cast<size_t>(event.name)];
    add(node.name.empty() ? node.op : node.op + " " + node.name, 0, event.begin, event.nanos,
        event.step);
  }
  absl::MutexLock lock(&mu_);
  for (const BatchEvent& batch : batches_) {
    add("batch", 2 + batch.thread, batch.begin, batch.nanos, batch.step);
  }
  return result;
}

}  // namespace lockstep::worker
