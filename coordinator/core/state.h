// SPDX-License-Identifier: Apache-2.0
// What the coordinator knows: nodes, jobs, their workers and generations. Plain data; the rules
// that change it are the other files of this folder, and they change it only inside Step (core.h).
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_STATE_H_
#define LOCKSTEP_COORDINATOR_CORE_STATE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/job_parts.h"
#include "coordinator/core/kept.h"
#include "coordinator/core/node.h"
#include "coordinator/core/options.h"
#include "coordinator/core/pauses.h"
#include "coordinator/core/queue_pass.h"
#include "coordinator/core/session_id.h"
#include "job/meaning/job_state.h"
#include "job/meaning/workers.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// The workers that one job may have.
inline constexpr int kMaxWorkers = 4096;

// One life of one worker process. What is looked at each time that something happens to its job
// comes first and shares a line of the cache, as a large job has thousands.
struct alignas(64) Worker {
  // How far it has come; it only goes on. Whether it is ready, or a member, is no part of this: its
  // session and the job's generation say so (context.h).
  enum class Phase {
    kUnplaced,  // it waits for a node with room
    kPlaced,    // its agent is to start it, from `starts_at` on
    kStarted,   // its process runs
    kLeaving,   // its place was given up: it leaves, which is no failure
    kDied,      // its process is dead; how it ended is not said yet
    kExited,    // its agent said how it ended
  };
  Phase phase = Phase::kUnplaced;
  int slot = 0;
  // The newest generation that it is or was a member of; 0: none.
  int64_t member_of = 0;
  // Set while it stands between generations (and kept until it leaves the next one).
  Kept<WorkerReady> ready;
  Kept<WorkerFinished> finished;
  Kept<WorkerFailed> failed;
  // The coordinator's own finding, such as "no heartbeat for 5 s". The serials number the events of
  // this coordinator; 0: not heard of.
  int64_t verdict_serial = 0;
  absl::Time last_heard = absl::InfinitePast();  // until its first hello
  bool on_gpu = false;                           // that is what its device is

  SessionId session = 0;
  // How it ended.
  Kept<WorkerExited> exited;
  Kept<PeerLost> peer_lost;
  int64_t died_serial = 0;
  int64_t died_order = 0;  // among the deaths of its node
  int64_t failed_serial = 0;
  // Of a former life: the fault that it is part of.
  int64_t fault = 0;
  int64_t pid = 0;
  int64_t reports = 0;  // times that it said that it lost a peer or has finished
  int local_rank = 0;
  bool waits = false;  // in a collective, for another
  // It failed when its node was out of sight, so that nothing is said against the worker.
  bool node_lost = false;
  // Another life of it there would be refused again: another build, another kind of device.
  bool refused = false;
  bool other_data = false;   // refused since its data is not that of the others
  bool other_build = false;  // refused since it does not understand the others
  bool end_unknown = false;  // it has exited, and no agent knows how any more

  // Signs of life. InfinitePast until its first hello.
  absl::Time progress_moved = absl::InfinitePast();
  // When it was heard of again after a silence. It has not had the time to do anything before.
  absl::Time back_since = absl::InfinitePast();
  // When its newest connection began, on which everything is told anew.
  absl::Time connected_since = absl::InfinitePast();
  int64_t beats = 0;  // heartbeats on it
  // It has said once that it is ready, and says so again on each connection; not journaled.
  bool was_ready = false;
  // Since when it is there, or since when it shall leave.
  absl::Time since = absl::InfinitePast();
  // Its agent is not told of it before (Job::starts_again_at).
  absl::Time starts_at = absl::InfinitePast();
  std::string node_id;

  // The commands that this connection was sent.
  struct Sent {
    int64_t generation = 0;
    int64_t abort = 0;
    int64_t regroup = 0;
    bool drain = false;
    bool exit = false;
  } sent;

  std::string incarnation;
  std::string host;
  Device device;
  Allocation allocation;  // what it has of its node
  int64_t progress_counter = -1;
  WorkerHeartbeat heartbeat;  // the newest
  Progress progress;
  // Seconds that the job had trained before this life of a worker did; not set: it has not yet.
  std::optional<double> trained_before;
  absl::Time step_seen = absl::InfinitePast();  // when progress.step last grew
  std::vector<absl::Duration> step_times;       // the newest ones, at most kStepTimes
  absl::Duration first_step;                    // from its state to its generation's first commit
  static constexpr size_t kStepTimes = 15;
  std::string lost_peer;  // the incarnation that peer_lost names; empty: none
  std::string verdict;
  // When it failed, as well as that is known; InfiniteFuture: not heard of.
  absl::Time failed_at = absl::InfiniteFuture();
  absl::Time end_announced = absl::InfinitePast();  // by its agent, which says next how it ended

  bool gone() const { return phase == Phase::kExited; }
  bool dead() const { return phase >= Phase::kDied; }
  bool leaving() const { return phase == Phase::kLeaving; }
  // Its agent has not been told of it yet, so there is no process of it.
  bool starts_later(absl::Time now) const {
    return (phase == Phase::kPlaced || phase == Phase::kLeaving) && now < starts_at;
  }
  // It works for the job, or is about to.
  bool serves() const { return phase < Phase::kLeaving; }
  // Its largest resident memory; 0: not known. What it says itself leaves out what is not the job's
  // (a profile, a command's setup), its host counts all that the process ever had.
  int64_t peak_rss_bytes() const {
    if (finished && finished->peak_rss_bytes() > 0) return finished->peak_rss_bytes();
    return exited ? exited->peak_rss_bytes() : 0;
  }
};

// What a place's row was made of, without what cannot change unless one of these does (job_record).
// Many are compared one after the other, so it is one line of the cache.
struct alignas(64) RowStamp {
  std::array<int64_t, 8> numbers{};
  bool operator==(const RowStamp&) const = default;
};

// A job-wide place for a worker; its index is the rank at full strength.
struct Slot {
  std::string node_id;  // empty: its worker waits for a node with room
  int local_rank = 0;
  int64_t lives = 0;  // incarnations that this place has had
  // False: the job was scaled down. Its worker leaves, and no new one is started.
  bool wanted = true;
  // Its worker is a spare that waits to take over (standby.h).
  bool standby = false;
  // The place whose worker, on a node that is drained, leaves when this one's is ready
  // (handover.h); -1: none.
  int relieves = -1;
  // Its worker was let go from such a node; another one is started when a node has room.
  bool returns = false;
  // Its worker was let go for a job of higher priority; the place is taken again when no job waits
  // for its room.
  bool lent = false;
  // Nothing: the place is vacant.
  Kept<Worker> worker;
  // Of the last one that left the place vacant.
  int64_t last_peak_rss_bytes = 0;
  // What its row was made of when it was last written is in Job::stamps. False: it is to be made
  // anew.
  bool written = false;

  bool vacant() const { return !worker.has_value(); }
  // Its worker waits to take over, in no generation; its end is no failure of the job.
  bool aside() const { return standby || relieves >= 0; }
  // Returns whether its worker is to be in the generations.
  bool works() const { return wanted && !aside(); }
  // Its worker, which is yet to be started, waits for a node with room.
  bool unplaced() const { return worker && worker->phase == Worker::Phase::kUnplaced; }
};

// Why no worker of a job is started on a node for a while.
struct Exclusion {
  std::string reason;
  int times = 0;  // that it was excluded; each doubles the time
  absl::Time until = absl::InfinitePast();
  // Its data was another: nothing is wrong with it, and the job's other nodes come first, also
  // after `until`.
  bool other_data = false;
  // The job could not begin there, and has not begun elsewhere yet: whose fault that is, is not
  // known (first_start.h).
  bool suspected = false;
};

struct Job {
  std::string id;
  SubmitJobRequest request;
  int64_t submit_order = 0;
  std::string run_dir;

  JobState state = PENDING;
  std::string reason;
  absl::Time submitted;
  // Since when it waits for room alone: it was submitted, released or stopped for another, or the
  // last one that it waited for ended.
  absl::Time ready_since;
  absl::Time started = absl::InfinitePast();
  absl::Time ended = absl::InfinitePast();

  std::vector<Slot> slots;
  std::vector<RowStamp> stamps;  // by place, of those that say so (Slot::written)
  // Nodes that had a worker which is in no place any more: files of the run lie there (files.h).
  std::set<std::string> left_nodes;
  GenerationState generation;
  int64_t generations = 0;
  bool stepped = false;                             // a step was committed since the start
  std::optional<std::string> drain;                 // why
  absl::Time drained_since = absl::InfinitePast();  // by its time limit
  std::optional<Ending> ending;
  // A member said that it lost a peer whose death is not known yet.
  absl::Time suspected = absl::InfiniteFuture();
  int restarts = 0;
  int64_t restart_step =
      -1;  // newest committed step at the last restart; progress resets the budget
  std::vector<Fault> faults;  // AddFault (faults.h)
  // Lives that failed and have been replaced, until their end is known and told.
  std::vector<Worker> former;
  std::vector<OpenFault> open_faults;
  int64_t fault_number = 0;
  // How a worker ended before the first step; another such end is no accident.
  std::string first_cause;
  std::map<std::string, Exclusion> excluded;  // by node
  int target_workers = 0;                     // how many it shall have; 0: not placed yet
  int scaled_to = 0;                          // what its user made of it; 0: as its file says
  bool timed_out = false;                     // it drains because its time limit is over
  std::optional<CheckpointMark> checkpoint;   // the newest one that was let appear
  JobResult result;
  std::optional<EvalResult> eval;
  // How it waits (scheduler.h).
  std::shared_ptr<const Ask> ask;  // what it needs; made when it is accepted
  bool held = false;
  std::vector<std::string> after;      // ids of jobs that have to succeed before it starts
  std::vector<std::string> after_any;  // and of those that have to end
  std::optional<Preempted> preempted;
  int preemptions = 0;
  int64_t lives = 0;                          // that its places had in earlier starts, at most
  absl::Duration ran = absl::ZeroDuration();  // in earlier starts
  // Since `started`, how long none of its workers had a place, but for the wait that lasts, and
  // since when that does (run_time.h).
  absl::Duration waited = absl::ZeroDuration();
  std::optional<absl::Time> waits_since;
  Meter meter;

  Progress progress;           // newest of rank 0
  double trained_seconds = 0;  // when a worker last left its place (trained.h)
  bool progress_pending = false;
  absl::Time progress_sent = absl::InfinitePast();
  absl::Time next_check = absl::InfiniteFuture();  // SetCheck (context.h)
  int64_t noted_slots = 0;                         // how many of State::slots are its own
  // Hosts that cannot reach each other (reachability.h); not journaled, as they are met again.
  std::vector<Cut> cuts;
  absl::Time cuts_since = absl::InfinitePast();
  int reach_tries = 0;
  absl::Time reach_again = absl::InfinitePast();
  std::string reach_text;
  // By pair of nodes: generations that ended because one heard nothing from the other, both alive,
  // and what it said of the last one.
  struct Silence {
    int generations = 0;
    Cut newest;
  };
  std::map<std::pair<std::string, std::string>, Silence> silences;
  // By node: generations that ended by a silence between it and any other.
  std::map<std::string, int> silent_generations;
  // Generations without a step in which all hosts waited for each other, and connected anew.
  int standstills = 0;
  // What is told of a job that runs; not journaled.
  std::optional<Stall> stall;
  StragglerWatch straggler;
  absl::Time watched = absl::InfinitePast();  // when both were brought up to date
  // A spare cannot run; no other is tried.
  bool no_standby = false;
  // No room is looked for before this for a spare that it lacks.
  absl::Time look_for_spare_at = absl::InfinitePast();
  // No worker is started before this to relieve one on a node that is drained.
  absl::Time relieve_again = absl::InfinitePast();
  // All who hold the state are out of sight with their nodes.
  bool out_of_sight = false;
  // While it waits: when an elastic job starts with fewer workers than it wants.
  absl::Time starts_at = absl::InfiniteFuture();
  absl::Time look_for_node_at = absl::InfinitePast();
  // Until then no new life is started: what hinders starts may pass (healing.cc). InfinitePast:
  // there is no such pause.
  absl::Time starts_again_at = absl::InfinitePast();
  // The time before does not count against its start.
  absl::Time forgiven = absl::InfinitePast();

  const JobSpec& spec() const { return request.spec(); }
  bool final() const { return job::IsFinal(state); }
  bool has_begun() const { return !final() && state != PENDING; }
  int wanted_workers() const { return scaled_to > 0 ? scaled_to : job::WantedWorkers(spec()); }
  // The fewest that it goes on with, of as many as it shall have now.
  int least_workers() const {
    return std::max(1, std::min(job::LeastWorkers(spec()), target_workers));
  }
};

// What events have touched since the state was last settled (core.h).
struct Unsettled {
  std::set<std::string> jobs;   // to be looked at
  std::set<std::string> nodes;  // whose rows may have changed
  // Whose agents may have to be told something else, in any order and more than once: a job may
  // have thousands.
  std::vector<std::string> wish_nodes;
  bool all_wishes = false;    // that is any agent
  bool schedule = false;      // slots came free, nodes came or jobs wait
  std::set<DayOfUser> usage;  // whose rows have changed
  Effects effects;            // said with what follows
  bool any() const {
    return schedule || all_wishes || !jobs.empty() || !nodes.empty() || !wish_nodes.empty();
  }
};

struct State {
  Options options;
  // The cluster's, from which those of generations are made. Never shown.
  std::string secret;
  int64_t serial = 0;  // events so far
  int64_t submits = 0;
  absl::Time last_step = absl::InfinitePast();
  // By how much the clock was ahead of all that the journal knew when this coordinator was started,
  // or went on at once, if that is so much that it may be wrong; else zero. No use is forgotten for
  // its age then.
  absl::Duration leap = absl::ZeroDuration();
  Pauses pauses;
  // Since when what was decided is not said, because it is not durable yet.
  std::optional<absl::Time> held_since;
  std::map<std::string, Node> nodes;
  // Of them, those that workers are to leave: by an order, or with the agent. SetDrain and SetKeeps
  // (nodes.h) write it.
  std::set<std::string> drained;
  std::map<std::string, Job> jobs;
  // Of them, those that have begun and not ended (NoteBegun, context.h): what looks at time and
  // nodes looks at these alone, as very many may wait.
  std::set<std::string> begun;
  std::map<SessionId, std::string> agent_sessions;
  // Job and incarnation.
  std::map<SessionId, std::pair<std::string, std::string>> worker_sessions;

  // The journal as it was last written, by key, so that changed rows are written and no others.
  std::unordered_map<std::string, std::string> saved;
  // Jobs and nodes whose rows could not be written; they are looked at again in the next step.
  std::set<std::string> owed_jobs;
  std::set<std::string> owed_nodes;
  std::set<std::string> owed_tokens;
  std::set<DayOfUser> owed_usage;
  // Rows that are to go and are still there.
  std::set<std::string> owed_erasures;
  absl::Time looked_for_old = absl::InfinitePast();

  std::map<std::string, TokenRecord> tokens;  // by id (tokens.h)
  std::map<std::string, std::string> token_of_hash;

  std::map<DayOfUser, DayUse> usage;
  std::map<std::string, RecentUse> recent_use;  // by user
  // Nodes that are kept for a job which waits: nothing is started there that can wait.
  std::set<std::string> kept_nodes;
  int kept_priority = 0;  // that job's
  // When time alone may let a job start, or a pass over the queue that was put off is due.
  absl::Time schedule_at = absl::InfiniteFuture();
  absl::Time scheduled = absl::InfinitePast();  // when the newest pass was
  int64_t waiting = 0;  // jobs that waited then, also such as are held or wait for others
  // A job has ended or is gone since jobs that wait for others were looked at.
  bool look_at_dependencies = true;
  // When nodes were last looked at for those that say nothing, and which these were: room that is
  // kept for a job may have gone with one.
  absl::Time looked_at_nodes = absl::InfinitePast();
  std::set<std::string> silent_nodes;
  // When jobs are to be looked at again though nothing happens (SetCheck, context.h).
  std::set<std::pair<absl::Time, std::string>> checks;
  int64_t slots = 0;  // of all jobs, as each of them has noted (Job::noted_slots)
  // Jobs by what their submitters gave with a retry (RequestName, context.h).
  std::unordered_map<std::string, std::string> job_of_request;

  Unsettled unsettled;
  absl::Time settled = absl::InfinitePast();  // when that was
  int64_t size = 0;                           // jobs, workers and nodes then
  absl::Time wake_at = absl::InfinitePast();  // when it is due though nothing happens
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_STATE_H_
