// SPDX-License-Identifier: Apache-2.0
// The parts of what is known of a job: its generation, the failures that are being healed, its
// end, what it has used, and what is watched while it trains. Plain data of state.h.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_JOB_PARTS_H_
#define LOCKSTEP_COORDINATOR_CORE_JOB_PARTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

struct GenerationState {
  Generation message;  // number 0: none formed yet
  std::string row;     // the message as it is journaled; empty: not made yet
  bool aborted = false;
  std::string abort_reason;
  absl::Time aborted_at = absl::InfiniteFuture();
  // The members were asked to leave together after a step; why.
  std::optional<std::string> regroup;
  bool cuts_decided = false;    // reachability.h; not journaled
  bool silences_noted = false;  // likewise
  // Since when a member's word of a way between two others waits for theirs, and what it said;
  // reachability.h; not journaled.
  absl::Time hearsay_since = absl::InfiniteFuture();
  std::string hearsay;
  bool stepped = false;  // it has made a step, as was told; not journaled
  int64_t resumed =
      -1;  // the step of the checkpoint that it goes on from, as was told; -1: nothing
};

// A failure that is being healed: from the first sign until it is named and a step was committed
// after it that had not been before. Times are from the failure on.
struct OpenFault {
  int64_t number = 0;
  absl::Time failed;  // when the worker failed, as well as that is known
  absl::Time began;   // when the coordinator knew
  int64_t generation = 0;
  int64_t next_generation = 0;  // the first one formed after it; 0: none yet
  int place = 0;                // in Job::faults, from 1; 0: it is not named yet
  double to_next_step_ms = -1;  // negative: not known yet
  int64_t committed = 0;        // the newest step that anyone had committed
  int64_t steps_lost = 0;
  double rendezvous_ms = 0;  // until the next generation; 0: not known
  double restore_ms = 0;     // until the members that went on had the state; 0: not known
  double replay_ms = -1;     // until a new step was committed; negative: not known yet
};

// A member of the newest generation could not connect to one on another node.
struct Cut {
  std::string node;
  std::string peer;
  std::string text;
};

// A job on its way to a final state.
struct Ending {
  JobState target = FAILED;
  std::string reason;  // for FAILED it is made from the first failure when all is known
  int exit_code = 1;
  bool decided = false;  // reason and exit code are not those of a worker's failure
  absl::Time since;
  absl::Time deadline;
  // Workers are killed through their agents; set some time after `since` when only victims are
  // known.
  bool kill = false;
  int64_t kill_serial = 0;
  std::string note;  // why the failure was not healed
};

// The members wait for some that do not come (stall.h).
struct Stall {
  int64_t generation = 0;
  absl::Time began;
  bool said = false;
  std::string text;       // as it is now
  std::string operation;  // "step 812, bucket 3, tree_reduce 4071"
  std::string missing;    // "rank 2"
};

// How far a member had come, of what it says with each heartbeat.
struct StragglerMark {
  int64_t reductions = 0;
  int64_t last = 0;  // of these, to how many it came last
  int64_t waited_us = 0;
  int64_t step = 0;
  double train_seconds = 0;
};

// The job stops, and waits again, so that one of higher priority can start (preemption.h).
struct Preempted {
  std::string reason;
  absl::Time since;
};

// What a job has used until `since`; from then on it has so many slots and GPUs (accounting.h).
struct Meter {
  double slot_seconds = 0;
  double gpu_seconds = 0;
  absl::Time since = absl::InfinitePast();
  int slots = 0;
  int gpus = 0;
  // `since` is no older than an hour while a coordinator runs: it is not that of an earlier
  // version.
  bool regular = false;
};

// What a user's jobs have used on one day.
struct DayUse {
  double slot_seconds = 0;
  double gpu_seconds = 0;
  int64_t ended_jobs = 0;
};
// A day, in days since 1970 (UTC), and a user.
using DayOfUser = std::pair<int64_t, std::string>;

// A user's use in slot-seconds as it was then, older use for less.
struct RecentUse {
  double slot_seconds = 0;
  absl::Time at = absl::InfinitePast();
};

// A stretch of training in which slow workers are looked for (straggler.h).
struct StragglerWatch {
  int64_t generation = 0;
  absl::Time began = absl::InfinitePast();
  std::vector<StragglerMark> first;  // of the members, by rank
  std::string text;                  // who was slow in the last one; empty: nobody
  absl::Time said = absl::InfinitePast();
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_JOB_PARTS_H_
