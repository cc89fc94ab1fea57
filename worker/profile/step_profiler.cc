// SPDX-License-Identifier: Apache-2.0
#include "worker/profile/step_profiler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/time/time.h"
#include "common/clock.h"

namespace lockstep::worker {
namespace {

// Of one rank, and as many of its loader; the table goes on when the trace is full.
constexpr size_t kMaxEvents = 200000;

// Returns what the wall clock shows when the monotonic one is at 0. Hosts have the first in common.
int64_t ClockOffset() { return absl::ToUnixNanos(Clock::Real()->Now()) - MonotonicNanos(); }

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
      arena_bytes_(plan->arena_bytes()) {
  sums_.nodes.resize(nodes_.size());
  step_sums_.nodes.resize(nodes_.size());
  events_.reserve(4096);
  waits_.reserve(64);
}

void StepProfiler::DropStep() {
  step_sums_.phases.fill({});
  std::fill(step_sums_.nodes.begin(), step_sums_.nodes.end(), Sum{});
  events_.resize(step_events_);
  dropped_ -= std::exchange(step_dropped_, 0);
}

void StepProfiler::BeginStep(int64_t step, engine::Executor* executor) {
  if (active_) DropStep();
  active_ = range_.Contains(step);
  executor_ = executor;
  executor->Observe(active_ ? this : nullptr);
  step_ = step;
  waits_.clear();
  if (active_) step_begin_ = MonotonicNanos();
}

void StepProfiler::EndStep() {
  if (!active_) return;
  steps_.Add(MonotonicNanos() - step_begin_);
  for (size_t i = 0; i < sums_.phases.size(); ++i) sums_.phases[i].Add(step_sums_.phases[i]);
  for (size_t i = 0; i < nodes_.size(); ++i) sums_.nodes[i].Add(step_sums_.nodes[i]);
  step_events_ = events_.size();
  step_dropped_ = 0;
  DropStep();  // what it had is counted
  active_ = false;
  executor_->Observe(nullptr);
}

void StepProfiler::Keep(const Event& event) {
  if (events_.size() < kMaxEvents) {
    events_.push_back(event);
  } else {
    ++dropped_;
    ++step_dropped_;
  }
}

void StepProfiler::BeforeNode(engine::ProgramKind, int) { node_begin_ = MonotonicNanos(); }

absl::Status StepProfiler::AfterNode(engine::ProgramKind program, int node,
                                     absl::Span<const engine::TensorView>) {
  const int64_t nanos = MonotonicNanos() - node_begin_;
  if (program != engine::ProgramKind::kTraining) return absl::OkStatus();
  step_sums_.nodes[static_cast<size_t>(node)].Add(nanos);
  Keep({node, node_begin_, nanos, step_});
  return absl::OkStatus();
}

void StepProfiler::RecordPhase(StepPhase phase, int64_t begin, int64_t end) {
  int64_t nanos = end - begin;
  Keep({-1 - static_cast<int>(phase), begin, nanos, step_});
  // Waits for the others' commit and, on a device, for the next batch lie inside the computation
  // and are not part of it.
  const bool waits = phase == StepPhase::kCommitWait || phase == StepPhase::kDataWait;
  if (waits) waits_.push_back({end, nanos});
  if (phase == StepPhase::kCompute) {
    for (const Wait& wait : waits_) nanos -= wait.end > begin ? wait.nanos : 0;
    waits_.clear();
  }
  step_sums_.phases[static_cast<size_t>(phase)].Add(nanos);
}

void StepProfiler::RecordBatch(int thread, int64_t step, int64_t begin, int64_t end) {
  if (!range_.Contains(step)) return;
  absl::MutexLock lock(&mu_);
  if (batches_.size() < kMaxEvents) {
    batches_.push_back({thread, begin, end - begin, step});
  } else {
    ++batches_dropped_;
  }
}

RankProfile StepProfiler::Result(int rank, const std::string& job) {
  if (active_) DropStep();
  RankProfile result;
  result.set_rank(rank);
  result.set_job(job);
  result.set_clock_offset(ClockOffset());
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) == 0) result.set_host(host);
  result.set_threads(threads_);
  result.set_steps(steps_.calls);
  result.set_step_nanos(steps_.nanos);
  result.set_arena_bytes(static_cast<int64_t>(arena_bytes_));
  for (int i = 0; i < kStepPhases; ++i) {
    PhaseTime* phase = result.add_phases();
    phase->set_name(Name(static_cast<StepPhase>(i)));
    phase->set_calls(sums_.phases[static_cast<size_t>(i)].calls);
    phase->set_nanos(sums_.phases[static_cast<size_t>(i)].nanos);
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (sums_.nodes[i].calls == 0) continue;
    NodeTime* node = result.add_nodes();
    node->set_op(nodes_[i].op);
    node->set_name(nodes_[i].name);
    node->set_text(nodes_[i].text);
    node->set_calls(sums_.nodes[i].calls);
    node->set_nanos(sums_.nodes[i].nanos);
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
  result.set_events_dropped(dropped_ + batches_dropped_);
  return result;
}

}  // namespace lockstep::worker
