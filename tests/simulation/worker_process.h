// SPDX-License-Identifier: Apache-2.0
// A worker: its control machine and session, and training as steps that its group agrees on
// (group.h). Thread-safety: thread-compatible.
#ifndef LOCKSTEP_TESTS_SIMULATION_WORKER_PROCESS_H_
#define LOCKSTEP_TESTS_SIMULATION_WORKER_PROCESS_H_

#include <memory>
#include <string>

#include "launcher/agent/machine.h"
#include "tests/machines/worker_shell.h"

namespace lockstep::simulation {

class World;
class Group;

class WorkerProcess : public WorkerShell {
 public:
  WorkerProcess(World* world, Host* host, const launcher::agent_action::Start& start);

  void Start();
  // Leaves politely: it ends.
  void Terminate();

  // Its state is that after this step; -1: it has none.
  int64_t committed() const { return committed_; }
  bool has_state() const { return committed_ >= 0; }
  // How it ended by itself.
  int exit_code() const { return exit_code_; }
  bool finished() const { return finished_; }
  // It has a signal that ends it, and is not gone yet.
  bool killed() const { return killed_; }
  void NoteKilled() { killed_ = true; }
  // Until then a fault may keep it from what it is to do.
  void NoteImpaired(absl::Time until) { impaired_ = std::max(impaired_, until); }
  // Returns whether it is to blame for what it does not do: it, its host or its link is not well.
  bool Ails() const;
  // Returns whether it may be given up if it lives: what ails it, its host or its link lasts, or
  // may be taken for what does.
  bool IsGivenUp() const;

  // ---- its group ----
  // The generation begins for it: state after `step`, which is that of a checkpoint when nobody had
  // any.
  void Enter(int64_t step, bool resumed);
  void Commit(int64_t step);
  // Its generation is over; `lost_rank` is to blame (-1: not known).
  void LeaveGroup(int lost_rank, const std::string& why);
  void FinishTraining(bool drained);
  void RegroupNow();
  // Returns whether it does not leave its generation though it should: its main thread hangs, in
  // some seeds and once a job, and the thread that speaks to the coordinator goes on.
  bool Hangs();
  bool wants_drain() const { return machine().drain(); }
  int64_t regroup() const { return machine().regroup(); }

 protected:
  void OnCommand(const WorkerCommand& command) override;
  void OnAbort(const std::string& reason) override;
  void OnDeath() override;

 private:
  void SayReady();
  void LookForGeneration();
  void Beat();
  void BeatNow();
  void Exit(int code);
  void SayLine();
  // In some seeds its main thread is slow to look, and in some of them so slow that what it finds
  // may well be over.
  absl::Duration LongestLook() const;

  World* const world_;
  std::shared_ptr<Group> group_;
  int64_t committed_ = -1;
  int64_t highest_generation_ = 0;
  int64_t moves_ = 0;
  int64_t resumed_step_ = 0;
  absl::Time restored_ = absl::InfinitePast();
  absl::Time first_commit_ = absl::InfinitePast();
  int64_t obeyed_epoch_ = 0;
  bool ready_ = false;  // it waits for a generation
  bool finished_ = false;
  bool drained_ = false;
  bool killed_ = false;
  bool hangs_ = false;
  absl::Time impaired_ = absl::InfinitePast();
  int exit_code_ = 0;
};

}  // namespace lockstep::simulation

#endif  // LOCKSTEP_TESTS_SIMULATION_WORKER_PROCESS_H_
