// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/health.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/command.h"
#include "coordinator/core/departures.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/peer_signs.h"

namespace lockstep::coordinator {
namespace {

// Who has finished is needed again when its generation ended before the result was there.
bool Watched(const Job& job, const Worker& worker) {
  return worker.serves() && (!worker.finished || job.generation.aborted) &&
         worker.last_heard != absl::InfinitePast();
}

// The time since `sign` of the worker in which neither it nor its node was out of sight.
absl::Duration Since(const Context& context, const Worker& worker, absl::Time sign) {
  sign = std::max(sign, worker.back_since);
  const auto node = context.state.nodes.find(worker.node_id);
  if (node != context.state.nodes.end()) sign = std::max(sign, node->second.back_since);
  return context.now - sign;
}

// How long nothing was heard of the worker though it could have spoken.
absl::Duration Silence(const Context& context, const Worker& worker) {
  return Since(context, worker, worker.last_heard);
}

// Who was heard of lately is not, wherever its node is: that is asked last.
bool IsSilentFor(absl::Duration limit, const Context& context, const Job& job, const Worker& worker,
                 PeerSigns& signs) {
  return Watched(job, worker) && context.now - worker.last_heard > limit &&
         Silence(context, worker) > limit && !signs.Heard(context, worker);
}

bool IsSilent(const Context& context, const Job& job, const Worker& worker, PeerSigns& signs) {
  return IsSilentFor(signs.detection(), context, job, worker, signs);
}

// Returns whether all that hold the job's state, the members of its newest generation, are silent,
// each with its node. They may well go on there, and nobody else could: to begin again elsewhere
// costs the steps since the checkpoint, also those of which nobody has told yet. Who is half-way to
// being silent is no better off: where links go one after the other nobody would be waited for.
bool NobodyInSight(const Context& context, const Job& job, PeerSigns& signs) {
  bool any = false;
  for (const Slot& slot : job.slots) {
    if (slot.vacant()) continue;
    const Worker& worker = *slot.worker;
    if (!IsMember(job, worker) || worker.dead() || Failed(worker)) continue;
    if (!IsSilentFor(signs.detection() / 2, context, job, worker, signs) ||
        NodeInSight(context.state, worker, context.now)) {
      return false;
    }
    any |= IsSilent(context, job, worker, signs);
  }
  return any;
}

// Says when the job's workers come out of sight all together, and when they are back.
void NoteSight(Context& context, Job& job, bool out_of_sight, PeerSigns& signs) {
  // Where one came back the others are on their way.
  if (std::exchange(job.out_of_sight, out_of_sight) && !out_of_sight) {
    for (Slot& slot : job.slots) {
      if (slot.worker && IsSilent(context, job, *slot.worker, signs))
        slot.worker->back_since = context.now;
    }
  }
  if (out_of_sight && job.state == RUNNING) {
    SetState(context, job, RECOVERING,
             absl::StrCat("all workers are out of sight with their nodes and may go on there; ",
                          DurationText(context.state.options.node_lost_after),
                          " after they were last heard of the job goes on elsewhere"));
  } else if (!out_of_sight && job.state == RECOVERING && HasActiveGeneration(job) &&
             !job.generation.regroup && !AnyFailed(job)) {
    SetState(context, job, RUNNING, "the workers are in sight again and go on");
  }
}

// Returns whether all workers of the job are on the host of this one.
bool OnOneHost(const Job& job, const Worker& worker) {
  return std::all_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.vacant() || slot.worker->node_id == worker.node_id || slot.unplaced();
  });
}

// A worker speaks five times a second and more, so that its host may have been heard that much
// later.
constexpr absl::Duration kBetweenBeats = absl::Milliseconds(500);

// Of a job on several hosts: whether the worker's agent, which speaks once a second, was not heard
// of since the worker was, so that its host may be what is silent. That costs the job no restart,
// and is known when the node is out of sight.
bool MayBeItsHost(const Context& context, const Job& job, const Worker& worker) {
  const auto node = context.state.nodes.find(worker.node_id);
  return !OnOneHost(job, worker) && node != context.state.nodes.end() &&
         InSight(context.state, node->second, context.now) &&
         node->second.last_contact <= worker.last_heard + kBetweenBeats;
}

// Returns whether anybody who should speak was last heard of before `then`.
bool AnyHeardBefore(const Job& job, absl::Time then) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && slot.worker->last_heard < then && Watched(job, *slot.worker);
  });
}

// A worker or an agent that lives, and whose connections were cut, tries anew more often than that.
constexpr absl::Duration kLongestWait = absl::Milliseconds(700);

// Returns whether a worker on another host saw the connections of this one end, and neither it nor
// its agent has any to here: all processes of its host are gone.
bool IsGoneWithItsHost(const Context& context, const Job& job, const Worker& worker) {
  // Who was not here since this coordinator began is yet to find it.
  if (!Watched(job, worker) || worker.session != 0 ||
      worker.connected_since == absl::InfinitePast() || Silence(context, worker) <= kLongestWait) {
    return false;
  }
  const auto node = context.state.nodes.find(worker.node_id);
  if (node == context.state.nodes.end() || node->second.session != 0 ||
      context.now - node->second.last_contact <= kLongestWait) {
    return false;
  }
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    if (!slot.worker || !slot.worker->peer_lost) return false;
    const PeerLost::Kind kind = slot.worker->peer_lost->kind();
    return (kind == PeerLost::DIED || kind == PeerLost::SILENT) &&
           slot.worker->lost_peer == worker.incarnation && slot.worker->node_id != worker.node_id;
  });
}

// These need not be waited for.
void CheckGone(Context& context, Job& job) {
  if (!AnyHeardBefore(job, context.now - kLongestWait)) return;
  for (Slot& slot : job.slots) {
    if (slot.vacant() || !IsGoneWithItsHost(context, job, *slot.worker)) continue;
    slot.worker->failed_at = std::min(slot.worker->failed_at, slot.worker->last_heard);
    Judge(context, job, *slot.worker,
          "its connections ended, and so did those of its host's agent");
  }
}

void CheckSilence(Context& context, Job& job) {
  PeerSigns signs(job);
  if (!AnyHeardBefore(job, context.now - signs.detection())) {
    return NoteSight(context, job, /*out_of_sight=*/false, signs);
  }
  const bool nobody_in_sight = NobodyInSight(context, job, signs);
  NoteSight(context, job, nobody_in_sight, signs);
  absl::Duration limit = FailureDetection(job);
  if (nobody_in_sight) limit = std::max(limit, context.state.options.node_lost_after);
  Worker* silent = nullptr;
  for (Slot& slot : job.slots) {
    if (slot.vacant()) continue;
    Worker& worker = *slot.worker;
    if (Failed(worker) || !IsSilent(context, job, worker, signs)) continue;
    const absl::Duration own = std::max(limit, SilenceLimit(context, job, worker));
    if (Silence(context, worker) <= own) continue;
    if (MayBeItsHost(context, job, worker)) continue;
    if (silent == nullptr || worker.last_heard < silent->last_heard) silent = &worker;
  }
  if (silent == nullptr) return;
  limit = std::max(limit, SilenceLimit(context, job, *silent));
  silent->failed_at = std::min(silent->failed_at, silent->last_heard);
  Judge(context, job, *silent, absl::StrCat("no heartbeat for ", DurationText(limit)));
}

// When one worker stands still the others soon wait for it, so one that waits for nobody is meant,
// of these the one that stopped first. Who waits is only meant when all wait and nothing moves; and
// nobody is judged while a worker is half-way to being silent. One limit holds for all: they do the
// same steps, and with one of its own a victim could be judged before the culprit.
void CheckStandstill(Context& context, Job& job) {
  if (!HasActiveGeneration(job) || !job.stepped || IsCommand(job)) return;
  const absl::Duration detection = FailureDetection(job);
  std::vector<Worker*> members;
  bool all_wait = true, any_late = false;
  // Members connect to each other before they train, and say themselves who cannot be reached.
  bool connecting = false;
  for (Slot& slot : job.slots) {
    if (slot.vacant()) continue;
    Worker& worker = *slot.worker;
    if (!Watched(job, worker)) continue;
    const bool half_silent = context.now - worker.last_heard > detection / 2;
    if (half_silent && Silence(context, worker) > detection / 2) return;
    if (!IsMember(job, worker)) continue;
    any_late |= context.now - worker.progress_moved > detection;
    all_wait &= worker.waits;
    connecting |= worker.progress.phase() == WAITING;
    members.push_back(&worker);
  }
  if (!any_late) return;
  absl::Duration limit = detection;
  for (const Worker* worker : members) limit = std::max(limit, StepLimit(*worker));
  if (connecting) limit += detection + 2 * context.state.options.settle;
  // A host that hears nothing from another one for `detection` looks once a second, and knows more.
  if (all_wait && !OnOneHost(job, *members.front())) limit += 2 * context.state.options.settle;
  // What one receives was taken from the others long before, where buffers are large.
  const auto moves = [&](const Worker* worker) {
    return Since(context, *worker, worker->progress_moved) <= limit;
  };
  if (all_wait && std::any_of(members.begin(), members.end(), moves)) return;
  Worker* hung = nullptr;
  for (Worker* worker : members) {
    const bool meant = all_wait || !worker->waits;
    if (!meant || moves(worker)) continue;
    if (hung == nullptr || worker->progress_moved < hung->progress_moved) hung = worker;
  }
  if (hung == nullptr) return;
  // Each host waits for another: what is between them may swallow what they say, and new
  // connections may do. When that does not help either, somebody hangs.
  constexpr int kNewConnections = 3;
  if (all_wait && !OnOneHost(job, *hung) && job.standstills < kNewConnections) {
    ++job.standstills;
    return AbortCurrentGeneration(context, job,
                                  absl::StrCat("all workers have waited for each other for ",
                                               DurationText(limit), "; they connect anew"));
  }
  hung->failed_at = std::min(hung->failed_at, hung->progress_moved);
  Judge(context, job, *hung, absl::StrCat("no progress for ", DurationText(limit)));
}

// Returns what the worker does with a disk, which may take its time; empty: nothing.
std::string DiskWork(const Worker& worker) {
  if (worker.progress.phase() == SAVING) return "writes to its disk";
  if (worker.progress.phase() == LOADING) return "reads a checkpoint";
  return worker.heartbeat.activity() == IN_DATA_LOADER ? "reads its data" : "";
}

// Says whom an ended generation waits for, which may take as long as the disk does: of `on_disk`
// the first one.
void TellOnDisk(Context& context, Job& job, const std::vector<const Worker*>& on_disk) {
  constexpr const char* kWaits = "; waits for rank ";
  if (on_disk.empty() || (job.state != RUNNING && job.state != RECOVERING)) return;
  std::string reason = job.state == RECOVERING ? job.reason.substr(0, job.reason.find(kWaits))
                                               : job.generation.abort_reason;
  const Worker& first = *on_disk.front();
  absl::StrAppend(&reason, kWaits, first.slot, " on ", first.host, ", which ", DiskWork(first));
  if (on_disk.size() > 1) absl::StrAppend(&reason, ", and for ", on_disk.size() - 1, " more");
  if (reason != job.reason) SetState(context, job, RECOVERING, reason);
}

// A survivor that does not leave an ended generation holds up all others, unless it writes to a
// slow disk or reads from one. One without a connection may have left and said so: its silence is
// judged, as that of any other.
void CheckLeaving(Context& context, Job& job) {
  if (!job.generation.aborted || job.out_of_sight) return;
  const bool heals = MaxRestarts(job) > 0 ||
                     std::any_of(job.open_faults.begin(), job.open_faults.end(),
                                 [](const OpenFault& fault) { return fault.next_generation == 0; });
  if (!heals) return;
  if (context.now - job.generation.aborted_at < FailureDetection(job)) return;
  std::vector<const Worker*> on_disk;
  for (Slot& slot : job.slots) {
    if (slot.vacant()) continue;
    Worker& worker = *slot.worker;
    if (StandsBetween(job, worker) || worker.dead() || !IsMember(job, worker)) continue;
    if (worker.session == 0) continue;
    const absl::Duration limit =
        std::max(FailureDetection(job) + CommandGrace(job), SilenceLimit(context, job, worker));
    // Who was not heard for long may not have been told either.
    const absl::Time told =
        std::max({job.generation.aborted_at, worker.back_since, worker.connected_since});
    if (context.now - told < limit || Since(context, worker, told) < limit) continue;
    // It leaves when the disk has done its part, and may hold what nobody else does.
    if (!DiskWork(worker).empty() && Since(context, worker, worker.progress_moved) < limit) {
      on_disk.push_back(&worker);
      continue;
    }
    Judge(context, job, worker,
          absl::StrCat("did not leave generation ", job.generation.message.generation(), " within ",
                       DurationText(limit)));
  }
  TellOnDisk(context, job, on_disk);
}

// Returns whether the worker is still not ready to train start_timeout after its start or, where it
// has been and says so again on a new connection, after that began. Without a connection its
// silence is judged then.
bool IsNotReadyInTime(const Context& context, const Job& job, const Worker& worker) {
  if (!worker.serves() || StandsBetween(job, worker)) return false;
  if (worker.was_ready && worker.session == 0) return false;
  const absl::Time since =
      worker.was_ready ? std::max(worker.since, worker.connected_since) : worker.since;
  return context.now >= since + StartTimeout(job);
}

// A worker that shall join a job that steps already.
void CheckJoining(Context& context, Job& job) {
  if (!job.stepped) return;
  for (Slot& slot : job.slots) {
    if (slot.vacant() || slot.unplaced()) continue;
    Worker& worker = *slot.worker;
    if (IsMember(job, worker) || !IsNotReadyInTime(context, job, worker)) continue;
    Judge(context, job, worker,
          absl::StrCat("was not ready to train ", DurationText(StartTimeout(job)),
                       " after its start (start_timeout)"));
  }
}

// Returns whether the members have had the time for their first step: each takes part in it, so it
// counts from when the last of them was started.
bool IsFirstStepLate(const Context& context, const Job& job) {
  return HasActiveGeneration(job) &&
         std::all_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
           return slot.vacant() || !IsMember(job, *slot.worker) || !slot.worker->serves() ||
                  context.now >= slot.worker->since + StartTimeout(job);
         });
}

// Before the job's first step. Who is ready waits for those who are not, or for a node with room.
void CheckStart(Context& context, Job& job) {
  const absl::Time begin = std::max(job.started, job.forgiven);
  const absl::Duration limit = StartTimeout(job);
  if (job.stepped || context.now < begin + limit) return;
  const bool step_is_late = IsFirstStepLate(context, job);
  for (Slot& slot : job.slots) {
    if (slot.vacant() || slot.unplaced()) continue;
    Worker& worker = *slot.worker;
    if (!worker.serves() || worker.finished) continue;
    const bool steps = HasActiveGeneration(job) && IsMember(job, worker);
    if (steps ? !step_is_late : !IsNotReadyInTime(context, job, worker)) continue;
    const char* const what = steps ? "has not done its first step"
                             : worker.phase >= Worker::Phase::kStarted
                                 ? "was not ready to train"
                                 : "was not started by its agent";
    const std::string why = job.reach_text.empty() ? "" : absl::StrCat(": ", job.reach_text);
    return Judge(
        context, job, worker,
        absl::StrCat(what, " ", DurationText(limit), " after the start (start_timeout)", why));
  }
}

// Workers that were never heard of, on nodes that went out of sight: others are started elsewhere.
// Those that were heard of speak for themselves, whatever is heard of their agents.
void CheckNodes(Context& context, Job& job) {
  const absl::Duration limit = FailureDetection(job);
  for (Slot& slot : job.slots) {
    if (slot.vacant() || slot.unplaced()) continue;
    Worker& worker = *slot.worker;
    if (!worker.serves() || worker.last_heard != absl::InfinitePast()) continue;
    if (context.now - worker.since <= limit) continue;
    const auto node = context.state.nodes.find(worker.node_id);
    if (node == context.state.nodes.end() || InSight(context.state, node->second, context.now)) {
      continue;
    }
    const absl::Time since = std::max(node->second.last_contact, worker.since);
    if (context.now - since <= limit) continue;
    Judge(context, job, worker,
          absl::StrCat("the agent on ", node->second.host, " has been out of reach for ",
                       DurationText(limit)));
  }
}

// While a job runs the core is asked every twentieth of its failure_detection (core.cc); without
// one once a second, for the nodes.
absl::Duration LongestGap(const State& state) {
  absl::Duration longest = absl::Seconds(2);
  for (const std::string& id : state.begun) {
    longest = std::min(longest, FailureDetection(state.jobs.at(id)) / 4);
  }
  return longest;
}

// The newest `gap` of time has not passed for anybody. Of jobs that wait nobody is judged.
void TakeOut(State& state, absl::Duration gap, absl::Time now) {
  // What is still to come does so later.
  const auto shift = [&](absl::Time& time) {
    time = time > now ? time + gap : std::min(now, time + gap);
  };
  state.pauses.Add(gap, now);
  for (auto& [id, node] : state.nodes) {
    shift(node.last_contact);
    shift(node.back_since);
  }
  for (const std::string& id : state.begun) {
    Job& job = state.jobs.at(id);
    job.forgiven = std::max(job.forgiven, job.started);
    shift(job.forgiven);
    shift(job.starts_again_at);
    if (job.suspected != absl::InfiniteFuture()) shift(job.suspected);
    if (job.generation.aborted) shift(job.generation.aborted_at);
    shift(job.cuts_since);
    shift(job.generation.hearsay_since);
    shift(job.drained_since);
    if (job.preempted) shift(job.preempted->since);
    if (job.ending) {
      shift(job.ending->since);
      job.ending->deadline += gap;
    }
    for (Slot& slot : job.slots) {
      if (slot.vacant()) continue;
      Worker& worker = *slot.worker;
      for (absl::Time* const time :
           {&worker.since, &worker.starts_at, &worker.connected_since, &worker.back_since,
            &worker.last_heard, &worker.progress_moved, &worker.step_seen}) {
        shift(*time);
      }
    }
  }
}

}  // namespace

absl::Duration StepLimit(const Worker& worker) {
  return worker.step_times.empty() ? worker.first_step : 10 * MedianStep(worker);
}

absl::Duration MedianStep(const Worker& worker) {
  if (worker.step_times.empty()) return absl::ZeroDuration();
  std::vector<absl::Duration> times = worker.step_times;
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void CheckHealth(Context& context, Job& job) {
  if (job.final() || job.state == PENDING || job.ending || context.state.held_since) return;
  CheckGone(context, job);
  CheckSilence(context, job);
  CheckStandstill(context, job);
  CheckStart(context, job);
  CheckLeaving(context, job);
  CheckJoining(context, job);
  CheckNodes(context, job);
  RetireUnseen(context, job);
}

void ForgivePause(Context& context) {
  State& state = context.state;
  constexpr absl::Duration kNoPause = absl::Milliseconds(20);
  const absl::Duration gap = context.now - std::exchange(state.last_step, context.now);
  if (gap <= kNoPause || gap == absl::InfiniteDuration()) return;
  SkipLeap(state, gap, context.now);
  if (state.held_since) return;
  const absl::Duration longest = LongestGap(state);
  // What came meanwhile is still to be read.
  if (gap > longest) TakeOut(state, gap + longest, context.now);
}

void Hold(Context& context) {
  if (!context.state.held_since) context.state.held_since = context.now;
}

void Release(Context& context) {
  State& state = context.state;
  if (!state.held_since) return;
  const absl::Duration held = context.now - *std::exchange(state.held_since, std::nullopt);
  TakeOut(state, held, context.now);
  context.touched_jobs.insert(state.begun.begin(), state.begun.end());
}

void ForgiveTime(State& state, absl::Time then) {
  state.pauses.BeginAt(then);
  for (auto& [id, node] : state.nodes) node.last_contact = then;
  for (auto& [id, job] : state.jobs) {
    if (job.final()) continue;
    job.forgiven = then;
    if (job.suspected != absl::InfiniteFuture()) job.suspected = then;
    if (job.generation.aborted) job.generation.aborted_at = then;
    if (job.drain) job.drained_since = then;
    if (job.preempted) job.preempted->since = then;
    if (job.ending) {
      job.ending->since = then;
      job.ending->deadline = then + state.options.settle;
      if (!job.ending->kill) job.ending->deadline += CommandGrace(job);
    }
    for (Slot& slot : job.slots) {
      if (slot.vacant()) continue;
      slot.worker->since = then;
      if (slot.worker->last_heard == absl::InfinitePast()) continue;
      slot.worker->last_heard = then;
      slot.worker->progress_moved = then;
    }
  }
}

}  // namespace lockstep::coordinator
