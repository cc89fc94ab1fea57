// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/failures.h"

#include <signal.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/signal_name.h"
#include "coordinator/core/command.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/open_faults.h"

namespace lockstep::coordinator {
namespace {

// How long a culprit is waited for before victims are killed, how long members that lived through
// the end of their generation may take to write down what they know of it, and how long a worker
// that gave up by itself may take to say its last lines.
constexpr absl::Duration kCulpritWait = absl::Milliseconds(300);

// Ended by its agent as asked, not by itself before that.
bool KilledAsAsked(const Job& job, const Worker& worker) {
  if (!worker.exited || !worker.exited->wanted()) return false;
  return !job.ending || job.ending->kill_serial == 0 ||
         worker.died_serial >= job.ending->kill_serial;
}

bool IsVictim(const Job& job, const Worker& worker) {
  if (worker.verdict_serial != 0) return false;
  if (worker.peer_lost) return true;
  if (worker.failed && worker.failed->code() == static_cast<int>(absl::StatusCode::kAborted)) {
    return true;
  }
  return !worker.failed && KilledAsAsked(job, worker);
}

int64_t FirstSign(const Worker& worker) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (int64_t serial : {worker.died_serial, worker.failed_serial, worker.verdict_serial}) {
    if (serial != 0) first = std::min(first, serial);
  }
  return first;
}

// Deaths of one node are ordered by their life words, the rest by what was heard first here.
const Worker* FirstOf(const Job& job, const std::vector<const Worker*>& failed) {
  struct Candidate {
    const Worker* worker = nullptr;
    int64_t heard = std::numeric_limits<int64_t>::max();
  };
  std::map<std::string, Candidate> by_node;
  Candidate first;
  for (const Worker* worker : failed) {
    // What a command says of its failure comes from the process that dies of it.
    const bool crashed = worker->died_order != 0 && (!worker->failed || IsCommand(job)) &&
                         worker->verdict_serial == 0;
    if (!crashed) {
      if (FirstSign(*worker) < first.heard) first = {worker, FirstSign(*worker)};
      continue;
    }
    Candidate& candidate = by_node[worker->node_id];
    candidate.heard = std::min(candidate.heard, FirstSign(*worker));
    if (candidate.worker == nullptr || worker->died_order < candidate.worker->died_order) {
      candidate.worker = worker;
    }
  }
  for (const auto& [node, candidate] : by_node) {
    if (candidate.heard < first.heard) first = candidate;
  }
  return first.worker;
}

bool BlamesNetwork(const Worker& worker) {
  return worker.peer_lost && (worker.peer_lost->kind() == PeerLost::SILENT ||
                              worker.peer_lost->kind() == PeerLost::DAMAGED);
}

// The one that most of the victims and of those still there lost sight of, when nobody is known to
// have failed; of several that whom the first place lost.
const Worker* LostPeer(const Job& job, const std::vector<const Worker*>& victims) {
  std::map<std::string, std::set<int>> lost_by;
  std::vector<std::string> in_order;
  const auto count = [&](const Worker& worker) {
    if (!worker.peer_lost || worker.lost_peer.empty()) return;
    const Worker* lost = FindWorker(job, worker.lost_peer);
    // It has left the generation like the others: it was the network's fault, and is nobody's.
    if (BlamesNetwork(worker) && lost != nullptr && !lost->dead() && StandsBetween(job, *lost)) {
      return;
    }
    lost_by[worker.lost_peer].insert(worker.slot);
    in_order.push_back(worker.lost_peer);
  };
  for (const Worker* worker : victims) count(*worker);
  for (const Slot& slot : job.slots) {
    if (slot.worker) count(*slot.worker);
  }
  const Worker* most = nullptr;
  size_t votes = 0;
  for (const std::string& incarnation : in_order) {
    const Worker* lost = FindWorker(job, incarnation);
    if (lost == nullptr) lost = FindFormer(job, incarnation);
    if (lost == nullptr || lost_by[incarnation].size() <= votes) continue;
    most = lost;
    votes = lost_by[incarnation].size();
  }
  return most;
}

const Worker* Culprit(const Job& job, const std::vector<const Worker*>& all) {
  std::vector<const Worker*> failed;
  std::vector<const Worker*> victims;
  for (const Worker* worker : all) (IsVictim(job, *worker) ? victims : failed).push_back(worker);
  if (const Worker* first = FirstOf(job, failed)) return first;
  if (const Worker* lost = LostPeer(job, victims)) return lost;
  return FirstOf(job, victims);
}

// Those whose failure ends the job: the newest lives, and those whose fault is not named yet.
std::vector<const Worker*> Suspects(const Job& job) {
  std::vector<const Worker*> suspects;
  for (const Worker& worker : job.former) {
    const bool open = std::any_of(
        job.open_faults.begin(), job.open_faults.end(),
        [&](const OpenFault& fault) { return fault.number == worker.fault && fault.place == 0; });
    if (open) suspects.push_back(&worker);
  }
  for (const Slot& slot : job.slots) {
    if (slot.worker && !slot.aside() && Failed(*slot.worker)) suspects.push_back(&*slot.worker);
  }
  return suspects;
}

// Returns whether an error ends the job that no other life of its worker would be spared, and that
// is none of those whose fault is not named yet: their failures are healed, or would have been.
bool EndedForGood(const Job& job) {
  const auto ended = [](const Worker& worker) { return Failed(worker) && IsForGood(worker); };
  return std::none_of(job.former.begin(), job.former.end(), ended) &&
         std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
           return slot.worker && !slot.aside() && ended(*slot.worker);
         });
}

int ExitCode(const Job& job, const Worker& worker) {
  if (!worker.exited || KilledAsAsked(job, worker)) return 1;
  if (worker.exited->signal() != 0) return 128 + worker.exited->signal();
  return worker.exited->exit_code() == 0 ? 1 : worker.exited->exit_code();
}

Fault MakeFault(const Job& job, const Worker& culprit, const std::vector<const Worker*>& failed) {
  Fault fault;
  fault.set_rank(culprit.slot);
  fault.set_host(culprit.host);
  fault.set_pid(culprit.pid);
  fault.set_cause(Cause(culprit));
  fault.set_generation(job.generation.message.generation());
  fault.set_exit_code(ExitCode(job, culprit));
  if (culprit.exited && !KilledAsAsked(job, culprit)) fault.set_signal(culprit.exited->signal());
  if (culprit.exited) *fault.mutable_last_lines() = culprit.exited->last_lines();
  std::set<int> victims;
  for (const Worker* worker : failed) {
    if (worker->incarnation != culprit.incarnation) victims.insert(worker->slot);
  }
  for (const int victim : victims) fault.add_victims(victim);
  return fault;
}

}  // namespace

bool AnyFailed(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(),
                     [](const Slot& slot) { return slot.worker && Failed(*slot.worker); });
}

bool AnyHolder(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && IsMember(job, *slot.worker) && !slot.worker->dead() &&
           !Failed(*slot.worker);
  });
}

bool IsForGood(const Worker& worker) {
  if (worker.refused) return true;
  if (worker.exited && !worker.exited->start_error().empty()) {
    const WorkerExited& exited = *worker.exited;
    return !exited.node_unfit() && !exited.may_pass() && !exited.wanted();
  }
  if (!worker.failed) return false;
  switch (static_cast<absl::StatusCode>(worker.failed->code())) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kPermissionDenied:
      return true;
    default:
      return false;
  }
}

bool HasOtherData(const Worker& worker) {
  if (worker.refused) return worker.other_data;
  return worker.failed && worker.failed->kind() == WorkerFailed::OTHER_DATA;
}

bool MayStartLater(const Worker& worker) { return worker.exited && worker.exited->may_pass(); }

std::string Cause(const Worker& worker) {
  if (worker.verdict_serial != 0) return worker.verdict;
  if (worker.failed) return worker.failed->message();
  if (worker.exited && !worker.end_unknown) {
    if (!worker.exited->start_error().empty()) {
      return absl::StrCat("could not be started: ", worker.exited->start_error());
    }
    if (const int signal = worker.exited->signal(); signal != 0) {
      return absl::StrCat("killed by ", SignalName(signal), " (signal ", signal, ")");
    }
    if (worker.exited->exit_code() == 0) return "exited with code 0 before its work was done";
    return absl::StrCat("exited with code ", worker.exited->exit_code());
  }
  if (worker.died_serial != 0) return "died; its agent has not said how";
  return "lost by its peers";
}

std::string SayFailed(const Worker& worker) {
  std::string text = absl::StrCat("rank ", worker.slot, " on ", worker.host);
  if (worker.pid != 0) absl::StrAppend(&text, " (pid ", worker.pid, ")");
  const bool known = worker.exited || worker.failed || worker.verdict_serial != 0;
  return absl::StrCat(text, known ? ": " : " died", known ? Cause(worker) : "");
}

const Worker& Named(const Job& job, const std::vector<const Worker*>& failed) {
  const Worker* culprit = Culprit(job, failed);
  return culprit == nullptr ? *failed.front() : *culprit;
}

Fault NameFault(const Job& job, const std::vector<const Worker*>& failed) {
  return MakeFault(job, Named(job, failed), failed);
}

void Judge(Context& context, Job& job, Worker& worker, const std::string& verdict) {
  if (worker.verdict_serial != 0 || !worker.serves()) return;
  if (worker.finished && !job.generation.aborted) return;
  worker.finished.reset();
  worker.failed_at = std::min(worker.failed_at, context.now);
  worker.verdict_serial = context.state.serial;
  worker.verdict = verdict;
  worker.node_lost = !NodeInSight(context.state, worker, context.now);
  if (worker.node_lost) NoteNodeFailure(context, worker.node_id, "it was lost with work on it", "");
  context.touched_jobs.insert(job.id);
}

void ForgetSilentLinks(Job& job) {
  for (Worker& worker : job.former) {
    if (!BlamesNetwork(worker) || worker.lost_peer.empty()) continue;
    const Worker* lost = FindWorker(job, worker.lost_peer);
    if (lost == nullptr || lost->dead()) continue;
    worker.lost_peer.clear();
    ++worker.reports;  // its row changes
  }
}

namespace {

// Returns whether a member of the training's newest generation has heard of its end and has not
// failed: it may be about to, as the others did, and has metrics to write.
bool MembersMayLeave(const Job& job) {
  if (IsCommand(job)) return false;
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    if (slot.vacant() || slot.aside()) return false;
    const Worker& worker = *slot.worker;
    return worker.session != 0 && worker.serves() && !worker.finished && !Failed(worker) &&
           IsMember(job, worker);
  });
}

// How long they have for that: longer where the job is patient.
absl::Duration LeaveWait(const Job& job) {
  constexpr absl::Duration kLongest = absl::Seconds(3);
  return std::max(kCulpritWait, std::min(kLongest, FailureDetection(job) / 20));
}

}  // namespace

void UpdateKill(Context& context, Job& job) {
  Ending& ending = *job.ending;
  if (ending.kill) return;
  if (AnyRankRuns(job) && context.now < ending.since + CommandGrace(job)) return;
  bool culprit_known = false;
  for (const Slot& slot : job.slots) {
    if (slot.vacant() || slot.aside()) continue;
    culprit_known |= Failed(*slot.worker) && !IsVictim(job, *slot.worker);
  }
  absl::Duration wait = culprit_known ? absl::ZeroDuration() : kCulpritWait;
  if (MembersMayLeave(job)) wait = LeaveWait(job);
  if (context.now < ending.since + wait) return;
  ending.kill = true;
  ending.kill_serial = context.state.serial;
  context.touched_jobs.insert(job.id);
}

bool AwaitsLastWords(const Context& context, const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    if (slot.vacant() || !slot.worker->exited || slot.worker->session == 0) return false;
    const Worker& worker = *slot.worker;
    const bool spoke = worker.failed || worker.verdict_serial != 0;
    const bool fails = worker.exited->signal() == 0 && worker.exited->exit_code() != 0;
    return fails && !spoke && context.now < worker.failed_at + kCulpritWait;
  });
}

void ConcludeFailure(Context& context, Job& job) {
  if (job.ending->decided) return;
  if (EndedForGood(job)) NameFaults(context, job, /*now=*/true);
  std::vector<const Worker*> suspects = Suspects(job);
  for (const Slot& slot : job.slots) {
    if (slot.vacant() || Failed(*slot.worker)) continue;
    if (slot.worker->peer_lost) suspects.push_back(&*slot.worker);
  }
  if (suspects.empty()) return;
  Fault fault = NameFault(job, suspects);
  std::string reason = absl::StrCat("rank ", fault.rank(), " on ", fault.host());
  if (fault.pid() != 0) absl::StrAppend(&reason, " (pid ", fault.pid(), ")");  // it was started
  absl::StrAppend(&reason, ": ", fault.cause());
  if (fault.victims_size() > 0) {
    absl::StrAppend(&reason, "; victims: ", fault.victims_size() == 1 ? "rank " : "ranks ",
                    absl::StrJoin(fault.victims(), ", "));
  }
  if (!job.ending->note.empty()) absl::StrAppend(&reason, "; ", job.ending->note);
  job.ending->reason = reason;
  job.ending->exit_code = fault.exit_code();
  AddFault(job, std::move(fault));
  JobEvent event;
  *event.mutable_fault() = job.faults.back();
  AppendEvent(context, job, std::move(event));
}

}  // namespace lockstep::coordinator
