// SPDX-License-Identifier: Apache-2.0
// Measures a stretch of a worker's steps: the phases of the step, each node of the plan, and the
// loader's threads. A worker without one pays a test of a null pointer for each phase.
// Thread-safety: the main thread measures; RecordBatch may be called by any thread.
#ifndef LOCKSTEP_WORKER_PROFILE_STEP_PROFILER_H_
#define LOCKSTEP_WORKER_PROFILE_STEP_PROFILER_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/step_range.h"
#include "engine/engine.h"
#include "proto/profile.pb.h"

namespace lockstep::worker {

// Nanoseconds of the host's monotonic clock, which all its processes share.
int64_t MonotonicNanos();

enum class StepPhase { kDataWait, kCompute, kCommitWait, kReduce, kUpdate };
inline constexpr int kStepPhases = 5;
// "data wait".
const char* Name(StepPhase phase);

class StepProfiler : public engine::NodeObserver {
 public:
  // Measures the steps in `range`. `plan` and `executor` outlive it.
  StepProfiler(const engine::Plan* plan, StepRange range);

  // Around each step (1-based) of the training loop. One that never ends, as its generation does
  // before, counts for nothing.
  void BeginStep(int64_t step, engine::Executor* executor);
  void EndStep();
  // Returns whether the present step is measured.
  bool active() const { return active_; }

  void BeforeNode(engine::ProgramKind program, int node) override;
  absl::Status AfterNode(engine::ProgramKind program, int node,
                         absl::Span<const engine::TensorView> outputs) override;
  // A phase of the present step. Of waits inside a computation it is told before that.
  void RecordPhase(StepPhase phase, int64_t begin, int64_t end);
  // A batch for `step` that loader thread `thread` made.
  void RecordBatch(int thread, int64_t step, int64_t begin, int64_t end) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns what was measured so far, of `job`. A step that has not ended is given up.
  RankProfile Result(int rank, const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Sum {
    int64_t calls = 0;
    int64_t nanos = 0;
    void Add(int64_t more) {
      ++calls;
      nanos += more;
    }
    void Add(const Sum& more) {
      calls += more.calls;
      nanos += more.nanos;
    }
  };
  struct Sums {
    std::array<Sum, kStepPhases> phases;
    std::vector<Sum> nodes;
  };
  struct Event {
    int name = 0;  // a node's number, or -1 - phase
    int64_t begin = 0;
    int64_t nanos = 0;
    int64_t step = 0;
  };
  struct BatchEvent {
    int thread = 0;
    int64_t begin = 0;
    int64_t nanos = 0;
    int64_t step = 0;
  };
  struct Wait {
    int64_t end = 0;
    int64_t nanos = 0;
  };
  void Keep(const Event& event);
  // Forgets what the present step has so far.
  void DropStep();

  const StepRange range_;
  const std::vector<engine::NodeInfo> nodes_;
  const int threads_;
  const size_t arena_bytes_;
  engine::Executor* executor_ = nullptr;
  bool active_ = false;
  int64_t step_ = 0;
  int64_t step_begin_ = 0;
  int64_t node_begin_ = 0;
  std::vector<Wait> waits_;  // since the last compute phase, ascending
  Sum steps_;
  Sums sums_;       // of the steps that ended
  Sums step_sums_;  // of the present one
  std::vector<Event> events_;
  size_t step_events_ = 0;  // where those of the present step begin
  int64_t dropped_ = 0;
  int64_t step_dropped_ = 0;  // of them, of the present step
  absl::Mutex mu_;
  std::vector<BatchEvent> batches_ ABSL_GUARDED_BY(mu_);
  int64_t batches_dropped_ ABSL_GUARDED_BY(mu_) = 0;
};

// Measures one phase from its making to Stop (or its end); does nothing without a profiler.
class PhaseTimer {
 public:
  PhaseTimer(StepProfiler* profiler, StepPhase phase)
      : profiler_(profiler != nullptr && profiler->active() ? profiler : nullptr),
        phase_(phase),
        begin_(profiler_ != nullptr ? MonotonicNanos() : 0) {}
  ~PhaseTimer() { Stop(); }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;
  // Ends the measurement; once is enough.
  void Stop() {
    if (profiler_ == nullptr) return;
    profiler_->RecordPhase(phase_, begin_, MonotonicNanos());
    profiler_ = nullptr;
  }

 private:
  StepProfiler* profiler_;
  const StepPhase phase_;
  const int64_t begin_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_PROFILE_STEP_PROFILER_H_
