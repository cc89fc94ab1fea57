// SPDX-License-Identifier: Apache-2.0
// Where the main thread writes how far it is, for the telemetry thread to read. Writing costs a few
// stores and never waits.
//
// Thread-safety: one writer (the main thread; of `moves` any thread), any readers. Values of one
// Read may come from two neighbouring steps.
#ifndef LOCKSTEP_WORKER_CONTROL_PROGRESS_BOARD_H_
#define LOCKSTEP_WORKER_CONTROL_PROGRESS_BOARD_H_

#include <atomic>
#include <cstdint>

#include "proto/coordinator.pb.h"

namespace lockstep::worker {

struct ProgressBoard {
  std::atomic<int64_t> generation{0};
  // When this worker had the state that the generation began with, and when the generation's first
  // step was committed, in nanoseconds of Clock::Real(); 0: not yet.
  std::atomic<int64_t> restored{0};
  std::atomic<int64_t> first_commit{0};
  // The step of the checkpoint that the run went on from; 0: none.
  std::atomic<int64_t> resumed_step{0};
  std::atomic<int64_t> step{0};
  std::atomic<int64_t> total_steps{0};
  std::atomic<double> epoch{0};
  std::atomic<double> total_epochs{0};
  std::atomic<double> loss{0};
  std::atomic<double> learning_rate{0};
  std::atomic<double> train_seconds{0};
  std::atomic<double> samples_per_second{0};
  std::atomic<int> phase{PHASE_UNSPECIFIED};
  std::atomic<int> activity{ACTIVITY_UNSPECIFIED};

  // Generation `number` begins.
  void EnterGeneration(int64_t number) {
    restored.store(0, std::memory_order_relaxed);
    first_commit.store(0, std::memory_order_relaxed);
    generation.store(number, std::memory_order_release);
  }
  // Phase `next` begins.
  void Enter(Phase next) {
    phase.store(next, std::memory_order_relaxed);
    Moved();
  }
  // Says what the worker is at within a step.
  void Do(Activity next) { activity.store(next, std::memory_order_relaxed); }
  // While it lives the worker is at an activity; then at what it was at before.
  class Part {
   public:
    Part(ProgressBoard* board, Activity activity)
        : board_(board), before_(board->activity.load(std::memory_order_relaxed)) {
      board_->Do(activity);
    }
    ~Part() { board_->Do(static_cast<Activity>(before_)); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    ProgressBoard* const board_;
    const int before_;
  };
  // Something moved on; the watch for stalls starts again.
  void Moved() { moves.fetch_add(1, std::memory_order_relaxed); }
  void Read(Progress* progress) const {
    progress->set_step(step.load(std::memory_order_relaxed));
    progress->set_total_steps(total_steps.load(std::memory_order_relaxed));
    progress->set_epoch(epoch.load(std::memory_order_relaxed));
    progress->set_total_epochs(total_epochs.load(std::memory_order_relaxed));
    progress->set_loss(loss.load(std::memory_order_relaxed));
    progress->set_learning_rate(learning_rate.load(std::memory_order_relaxed));
    progress->set_train_seconds(train_seconds.load(std::memory_order_relaxed));
    progress->set_samples_per_second(samples_per_second.load(std::memory_order_relaxed));
    progress->set_phase(static_cast<Phase>(phase.load(std::memory_order_relaxed)));
  }

  // Counts everything that moves on: steps, shards, evaluation blocks, phases, and pieces of what
  // takes long, which other threads count too.
  // A line of their own: other threads count in the middle of their work.
  alignas(64) std::atomic<int64_t> moves{0};
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_PROGRESS_BOARD_H_
