// SPDX-License-Identifier: Apache-2.0
// Faults that a run is to suffer, as users write them and as workers are told:
//   kill rank:2@step:50           SIGKILL when rank 2 begins step 50
//   kill rank:2@step:50/reduced   at a place within the step, see Place
//   exit rank:1@step:5=3          ends with exit code 3
//   segv rank:0@step:9            a segmentation fault
//   abort rank:0@step:9           ends itself with SIGABRT, as a failed assertion does
//   grow rank:1@step:20=512       takes 512 MiB more memory and goes on
//   stop rank:1@step:20           SIGSTOP: the process stands still and says nothing
//   hang rank:1@step:20           the step stands still, heartbeats go on
//   kill coordinator@step:50      SIGKILL for the run's coordinator when the first worker begins
//                                 step 50; places as above
//   flip rank:1@step:20           one bit of its training state is another one
//   slow rank:1:3x                from its first step on each of its steps takes three times as
//                                 long
//   scale 2@step:50               the job is to have two workers from when the first worker begins
//                                 step 50; places as above
// A rank is the place in the job at full strength, as in the names of the logs.
//
// Workers get them in the variable LOCKSTEP_CHAOS, separated by ';', and each happens once: the
// file that marks it in the run's folder is made just before.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_CHAOS_H_
#define LOCKSTEP_COMMON_CHAOS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::chaos {

inline constexpr const char* kVariable = "LOCKSTEP_CHAOS";
// The coordinator's journal: the process that holds a lock on this file is the coordinator.
inline constexpr const char* kJournalVariable = "LOCKSTEP_CHAOS_JOURNAL";
// The pipe on which a worker tells the launcher that the job is to be scaled: the fault's number in
// decimal and a line feed.
inline constexpr const char* kScaleVariable = "LOCKSTEP_CHAOS_SCALE";
// Below the run's folder; a file for each injection that has happened.
inline constexpr const char* kFolder = "chaos";

enum class Action { kKill, kExit, kSegv, kStop, kHang, kFlip, kSlow, kAbort, kGrow, kScale };

// Where in the step it happens, in the order of a step's life.
enum class Place {
  kStart,       // before its shards are run
  kReduce,      // its gradients are there, the reduction has not begun
  kReduced,     // the reduced gradients are there, the update has not begun
  kCommitted,   // its state is that after the step, which it has published
  kEval,        // in the evaluation after the step
  kSave,        // when it writes the model after the step
  kJoin,        // when it copies the state to go on after the step
  kCheckpoint,  // its part of the checkpoint after the step is durable, the checkpoint is not whole
  kBegun,       // with train.zero_stage: its moments are those after the step, its weights are not
  kBest,        // its weights are to be saved as the best so far, which all know by now
};

struct Injection {
  Action action = Action::kKill;
  bool coordinator = false;  // it is meant, and no rank
  int rank = 0;
  int64_t step = 1;
  Place place = Place::kStart;
  int exit_code = 1;       // kExit
  int64_t mebibytes = 64;  // kGrow
  double factor = 1;       // kSlow
  int workers = 1;         // kScale
  // Returns whether the worker that comes there first carries it out, whichever it is.
  bool of_the_job() const { return coordinator || action == Action::kScale; }
};

// `action` as "kill", `text` as "rank:2@step:50/reduced". Errors: InvalidArgument, with what would
// be right.
absl::StatusOr<Injection> Parse(const std::string& action, const std::string& text);
// "kill rank:2@step:50/reduced".
std::string ToString(const Injection& injection);
// The file that marks injection `number` (from 0) of the job: another job may have had the folder
// before. It holds the time in nanoseconds since the epoch and the pid, separated by a blank.
std::string MarkFile(const std::string& run_dir, const std::string& job_id, int number);
// Several, as in the variable. Errors: InvalidArgument.
absl::StatusOr<std::vector<Injection>> ParseAll(const std::string& text);
std::string ToString(const std::vector<Injection>& injections);

// What faults are drawn for.
struct Drawing {
  int ranks = 1;  // places that workers of the job may have
  int64_t steps = 2;
  bool stops = true;  // whether there are some
  // The job may have so many workers. Where these differ it is scaled, too.
  int least_workers = 1;
  int most_workers = 1;
  bool halves = false;  // steps have the place kBegun
};
// `count` kills, stops and exits at random ranks, steps in [2, steps] and places, kills of the
// coordinator and changes of the number of workers, a pure function of the arguments. Two of them
// are at least two steps apart; but a change may come at the step of the fault before it.
// REQUIRES: ranks >= 1, count <= MostDrawn(steps).
std::vector<Injection> Draw(uint64_t seed, int count, const Drawing& drawing);
// Returns how many faults have room in so many steps, two steps apart.
int64_t MostDrawn(int64_t steps);

}  // namespace lockstep::chaos

#endif  // LOCKSTEP_COMMON_CHAOS_H_
