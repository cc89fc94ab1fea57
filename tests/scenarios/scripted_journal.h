// SPDX-License-Identifier: Apache-2.0
// A coordinator's journal, whose writes come back by themselves or when the script says so.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_JOURNAL_H_
#define LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_JOURNAL_H_

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "tests/machines/coordinator_process.h"
#include "tests/machines/disk.h"

namespace lockstep::coordinator {

class ScriptedJournal {
 public:
  simulation::Disk disk;

  // A write of the coordinator.
  void Write(simulation::CoordinatorProcess& process, std::vector<Row> rows) {
    disk.Begin(process.epoch(), std::move(rows));
    if (holds_) return held_.push_back(process.weak_from_this());
    process.After(kTakes, [this, &process] { process.Written(disk.Finish(process.epoch())); });
  }
  void Hold() { holds_ = true; }
  // The oldest write comes back; false: there is none.
  bool WriteOne() {
    while (!held_.empty()) {
      const std::shared_ptr<simulation::Process> process = held_.front().lock();
      held_.pop_front();
      if (process == nullptr || !process->alive()) continue;
      auto& coordinator = static_cast<simulation::CoordinatorProcess&>(*process);
      coordinator.Written(disk.Finish(coordinator.epoch()));
      return true;
    }
    return false;
  }
  void GoOn() {
    holds_ = false;
    while (WriteOne()) {
    }
  }

 private:
  static constexpr absl::Duration kTakes = absl::Microseconds(100);

  bool holds_ = false;
  std::deque<std::weak_ptr<simulation::Process>> held_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_TESTS_SCENARIOS_SCRIPTED_JOURNAL_H_
