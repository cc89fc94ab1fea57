// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/generation.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/checkpoints.h"
#include "coordinator/core/command.h"
#include "coordinator/core/departures.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/healing.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/nodes.h"
#include "coordinator/core/open_faults.h"
#include "coordinator/core/reachability.h"
#include "coordinator/core/same_data.h"
#include "coordinator/core/secrets.h"
#include "coordinator/core/stays.h"

namespace lockstep::coordinator {
namespace {

constexpr int kExitNotAdmitted = 5;

bool Reproducible(const Job& job) {
  return !job.spec().train().has_reproducible() || job.spec().train().reproducible();
}

// The first one that holds the job's state speaks for all. Where nobody does it is the first one of
// the newest build, which other nodes are about to have.
const Worker& Speaker(const Job& job, const Members& members) {
  const Worker* newest = members.front();
  for (const Worker* worker : members) {
    if (IsMember(job, *worker)) return *worker;
    if (worker->ready->peer_protocol() > newest->ready->peer_protocol()) newest = worker;
  }
  return *newest;
}

// Ends the job at its start; later refuses the worker alone.
void Refuse(Context& context, Job& job, Worker& worker, const std::string& why, int exit_code) {
  if (job.generation.message.generation() == 0) {
    BeginEnding(context, job, FAILED, why, exit_code, /*kill=*/true);
  } else {
    Judge(context, job, worker, why);
    worker.refused = worker.verdict == why;
  }
}

// Why the two cannot be in one generation; empty: they can.
std::string WhyOtherBuild(const Worker& worker, const Worker& speaker) {
  const int own = worker.ready->peer_protocol(), others = speaker.ready->peer_protocol();
  if (own == others) return "";
  return absl::StrCat("rank ", worker.slot, " (", worker.host, ") is of another build of lockstep ",
                      "than rank ", speaker.slot, " (", speaker.host, "), and they do not ",
                      "understand each other: peer protocol ", own, " against ", others);
}

std::string WhyOtherPlan(const Worker& worker, const Worker& speaker) {
  if (worker.ready->plan_hash() == speaker.ready->plan_hash()) return "";
  return absl::StrCat("rank ", worker.slot, " (", worker.host, ") compiled another plan than rank ",
                      speaker.slot, " (", speaker.host, "): ", worker.ready->plan_hash(),
                      " against ", speaker.ready->plan_hash(),
                      "; do all nodes run the same build of lockstep?");
}

std::string WhyOtherBits(const Job& job, const Worker& worker, const Worker& speaker) {
  if (worker.ready->device_hash() == speaker.ready->device_hash() || !Reproducible(job)) return "";
  return absl::StrCat("the device of rank ", worker.slot, " (", worker.ready->device_description(),
                      ") computes other bits than that of rank ", speaker.slot, " (",
                      speaker.ready->device_description(),
                      "); use one kind of device or set train.reproducible: false");
}

// An upgrade may reach the nodes one after the other, also where a job begins: the worker alone is
// refused, unless all nodes are those of one command.
void RefuseBuild(Context& context, Job& job, Worker& worker, const std::string& why) {
  if (context.state.options.nodes_by != NodesBy::kJoin) {
    return Refuse(context, job, worker, why, 1);
  }
  Judge(context, job, worker, why);
  worker.refused = worker.other_build = worker.verdict == why;
}

// Returns whether all of `members` understand each other and run the same plan on the same kind of
// device, with the same data.
bool Admit(Context& context, Job& job, const Members& members) {
  const Worker& speaker = Speaker(job, members);
  const Worker* const data = DataSpeaker(job, members);
  for (Worker* worker : members) {
    if (const std::string why = WhyOtherBuild(*worker, speaker); !why.empty()) {
      RefuseBuild(context, job, *worker, why);
      return false;
    }
    const std::string other = data == nullptr ? "" : OtherData(*worker, *data);
    if (!other.empty()) {
      Refuse(context, job, *worker, other, kExitNotAdmitted);
      worker->other_data = worker->refused;
      return false;
    }
    if (const std::string why = WhyOtherPlan(*worker, speaker); !why.empty()) {
      Refuse(context, job, *worker, why, 1);
      return false;
    }
    if (const std::string why = WhyOtherBits(job, *worker, speaker); !why.empty()) {
      Refuse(context, job, *worker, why, kExitNotAdmitted);
      return false;
    }
  }
  return true;
}

Generation Deal(const Job& job, int64_t number, const Members& members) {
  const int world = static_cast<int>(members.size());
  const int shards = job.spec().train().shards() > 0 ? job.spec().train().shards()
                                                     : static_cast<int>(job.slots.size());
  Generation generation;
  generation.set_generation(number);
  generation.set_shards(shards);
  for (int rank = 0; rank < world; ++rank) {
    const Worker& worker = *members[rank];
    Member& member = *generation.add_members();
    member.set_rank(rank);
    member.set_local_rank(worker.local_rank);
    member.set_incarnation(worker.incarnation);
    member.set_host(worker.host);
    member.set_pid(worker.pid);
    *member.mutable_address() = worker.ready->address();
    member.set_device_uuid(worker.ready->device_uuid());
    member.set_shard_begin(static_cast<int>(static_cast<int64_t>(rank) * shards / world));
    member.set_shard_end(static_cast<int>(static_cast<int64_t>(rank + 1) * shards / world));
    if (worker.ready->has_committed_step()) {
      member.set_committed_step(worker.ready->committed_step());
      generation.set_start_step(
          std::max<int64_t>(generation.start_step(), worker.ready->committed_step()));
    }
  }
  return generation;
}

}  // namespace

bool Able(const Job& job, const Worker& worker) {
  return StandsBetween(job, worker) && !worker.dead() && !Failed(worker);
}

namespace {

// Returns whether some worker that must be in the next generation is not ready yet.
bool MustWait(const Context& context, const Job& job) {
  if (IsCommand(job)) return AwaitsRanks(context, job);
  bool survivors = false;
  for (const Slot& slot : job.slots) {
    if (slot.vacant()) continue;
    const Worker& worker = *slot.worker;
    if (!worker.serves() || !IsMember(job, worker)) continue;
    survivors = true;
    if (!StandsBetween(job, worker)) return true;
  }
  if (survivors) return false;
  // Nobody has the state: all that have a node begin together.
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.works() && slot.worker && !slot.unplaced() && !Able(job, *slot.worker);
  });
}

// Why the members of the active generation should leave it together; empty: no reason.
std::string WhyRegroup(const Job& job) {
  std::vector<std::string> joining, leaving;
  for (const Slot& slot : job.slots) {
    if (slot.vacant()) continue;
    const Worker& worker = *slot.worker;
    const bool member = IsMember(job, worker);
    if (slot.works() && !member && Able(job, worker)) joining.push_back(absl::StrCat(worker.slot));
    if (!slot.wanted && member && !worker.dead()) leaving.push_back(absl::StrCat(worker.slot));
  }
  const auto say = [](const std::vector<std::string>& ranks, const std::string& what) {
    if (ranks.empty()) return std::string();
    return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
                        ranks.size() == 1 ? absl::StrCat(" ", what, "s") : absl::StrCat(" ", what));
  };
  const std::string join = say(joining, "join"), leave = say(leaving, "leave");
  if (join.empty() && leave.empty() && IsBehindCheckpoint(job)) {
    return absl::StrCat("the newest checkpoint is of generation ", job.checkpoint->generation());
  }
  return absl::StrCat(join, !join.empty() && !leave.empty() ? ", " : "", leave);
}

bool AnyFinished(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && slot.worker->finished && IsMember(job, *slot.worker);
  });
}

// With an active generation: whether all its members have left it together.
bool HaveRegrouped(Context& context, Job& job) {
  if (!job.generation.regroup) {
    const bool ends = IsCommand(job) ? AnyFinished(job) : ResultIsThere(job);
    if (ends) return false;
    const std::string why = WhyRegroup(job);
    if (why.empty()) return false;
    job.generation.regroup = why;
    context.touched_jobs.insert(job.id);
    return false;
  }
  return !MustWait(context, job);
}

// A worker that is no member any more is let go.
void LetGo(Context& context, Job& job) {
  for (Slot& slot : job.slots) {
    if (slot.wanted || slot.vacant()) continue;
    Worker& worker = *slot.worker;
    if (!worker.serves() || IsMember(job, worker)) continue;
    worker.phase = Worker::Phase::kLeaving;
    worker.since = context.now;
  }
}

// Ranks of one host are neighbours, so that it holds one range of shards. Hosts come in the order
// of their first places, but for the one that rank 0 is to be on.
void OrderByHost(const Job& job, Members& members) {
  std::unordered_map<std::string, int> order;
  std::vector<std::pair<int, Worker*>> sorted;
  sorted.reserve(members.size());
  for (Worker* worker : members) {
    const std::string& wanted = job.ask->rank_zero;
    const bool first = !wanted.empty() && (wanted == worker->node_id || wanted == worker->host);
    const int next = first ? -1 : static_cast<int>(order.size());
    sorted.emplace_back(order.try_emplace(worker->node_id, next).first->second, worker);
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < members.size(); ++i) members[i] = sorted[i].second;
}

// Nobody has any state, and there may be a checkpoint: the workers look for one.
bool LooksForCheckpoint(const Job& job) {
  const Checkpoint& checkpoint = job.spec().checkpoint();
  if (checkpoint.dir().empty() || job.generation.message.start_step() > 0) return false;
  // Later ones go on from the run's own checkpoints also with `never`.
  return checkpoint.resume() != "never" || job.generations > 1;
}

// Returns what keeps workers from being started; empty: nothing does.
std::string WhyUnplaced(const Context& context, const Job& job) {
  const auto waits = [](const Slot& slot) { return slot.works() && slot.unplaced(); };
  const int64_t unplaced = std::count_if(job.slots.begin(), job.slots.end(), waits);
  if (unplaced == 0) return "";
  std::string text = absl::StrCat("; no node has room for ", Count(unplaced, "worker"));
  const std::string starter = NodesStarter(context.state.options.nodes_by);
  if (!starter.empty()) absl::StrAppend(&text, ", ", starter, " on another host makes some");
  for (const auto& [node_id, exclusion] : job.excluded) {
    if (!IsExcluded(job, node_id, context.now)) continue;
    absl::StrAppend(&text, "; not on ", node_id, " for now: ", exclusion.reason);
  }
  for (const auto& [node_id, node] : context.state.nodes) {
    const std::string why = WhyNoWork(node, context.now);
    if (!why.empty()) absl::StrAppend(&text, "; not on ", node_id, ": ", why);
  }
  return text;
}

std::string GenerationText(const Job& job) {
  return absl::StrCat("generation ", job.generation.message.generation(), " of ",
                      Count(job.generation.message.members_size(), "worker"));
}

// Returns whether members lost a peer, and nobody has failed. One that has, and whose cause is
// waited for, is healed later and costs its restart then.
bool IsUnexplained(const Job& job) {
  if (!job.generation.aborted || job.suspected == absl::InfiniteFuture()) return false;
  const bool healed = std::any_of(job.open_faults.begin(), job.open_faults.end(),
                                  [](const OpenFault& f) { return f.next_generation == 0; });
  return !healed && std::none_of(job.slots.begin(), job.slots.end(), [&](const Slot& slot) {
    return slot.worker && IsMember(job, *slot.worker) && Failed(*slot.worker);
  });
}

void Form(Context& context, Job& job, const Members& members) {
  NameLostRanks(context, job);
  ForgetSilentLinks(job);
  int64_t highest = job.generation.message.generation();
  for (const Worker* worker : members) {
    highest = std::max<int64_t>(highest, worker->ready->highest_generation());
  }
  if (IsBehindCheckpoint(job)) highest = std::max(highest, job.checkpoint->generation());
  const int64_t previous = NewestPublisher(job);
  EndNewcomersFaults(context, job, /*now=*/true);
  TellWrittenData(context, job, members);
  NoteSameData(members, job);
  job.generation = GenerationState{};
  job.generation.message = Deal(job, highest + 1, members);
  for (Worker* worker : members) worker->member_of = highest + 1;
  TellCheckpoint(job, previous, &job.generation.message);
  job.suspected = absl::InfiniteFuture();
  job.cuts.clear();
  for (Slot& slot : job.slots) {
    if (slot.vacant()) continue;
    slot.worker->peer_lost.reset();
    slot.worker->lost_peer.clear();
    slot.worker->progress_moved = std::max(slot.worker->progress_moved, context.now);
  }
  ++job.generations;
  // Nothing says how far a command is, and what is true from a job's first step on is true of it.
  job.stepped |= IsCommand(job);
  NoteGeneration(context, job);
  LetGo(context, job);
  const std::string reason =
      absl::StrCat(GenerationText(job),
                   IsCommand(job) ? " runs the command"
                   : LooksForCheckpoint(job)
                       ? " looks for a checkpoint to go on from"
                       : absl::StrCat(" goes on after step ", job.generation.message.start_step()));
  SetState(context, job, job.drain ? DRAINING : RUNNING, job.drain ? *job.drain : reason);
}

void Send(Context& context, const Worker& worker, WorkerCommand command, bool close = false) {
  context.effects.to_workers.push_back({worker.session, std::move(command), close});
}

}  // namespace

std::string WhyNotAdmitted(const Job& job, const Worker& worker, bool* other_data) {
  *other_data = false;
  for (const Slot& slot : job.slots) {
    if (!slot.worker || !slot.worker->ready || !IsMember(job, *slot.worker)) continue;
    std::string why = WhyOtherBuild(worker, *slot.worker);
    if (why.empty()) why = WhyOtherPlan(worker, *slot.worker);
    if (why.empty()) why = WhyOtherBits(job, worker, *slot.worker);
    if (!why.empty()) return why;
    why = OtherData(worker, *slot.worker);
    *other_data = !why.empty();
    return why;
  }
  return "";
}

bool ResultIsThere(const Job& job) {
  if (IsCommand(job)) return AllFinished(job);
  const auto& members = job.generation.message.members();
  if (members.empty()) return false;
  const Worker* first = FindWorker(job, members[0].incarnation());
  return first != nullptr && first->finished.has_value();
}

void MaybeFormGeneration(Context& context, Job& job) {
  if (job.slots.empty()) return;
  const bool active = HasActiveGeneration(job);
  if (active ? !HaveRegrouped(context, job) : MustWait(context, job)) return;
  if (!active) NoteSilences(context, job);
  if (HasCuts(job)) return;
  if (!active && WaitsForReach(context, job)) return;
  if (KeepWhoIsNeeded(job)) context.schedule = true;
  Members members, leaving;
  for (Slot& slot : job.slots) {
    if (!slot.worker || !Able(job, *slot.worker)) continue;
    if (slot.works()) members.push_back(&*slot.worker);
    if (!slot.wanted && IsMember(job, *slot.worker)) leaving.push_back(&*slot.worker);
  }
  const Members held = HeldBack(job, members, leaving);
  members.insert(members.end(), held.begin(), held.end());
  std::sort(members.begin(), members.end(),
            [](const Worker* a, const Worker* b) { return a->slot < b->slot; });
  OrderByHost(job, members);
  const int least = LeastMembers(job);
  const int size = static_cast<int>(members.size());
  if (size < least) {
    // At the very start nothing has to recover.
    const bool began = job.generation.message.generation() != 0;
    SetState(context, job, began ? RECOVERING : STARTING,
             absl::StrCat(job.drain ? absl::StrCat(*job.drain, "; ") : "", "waits for ",
                          Count(least - size, "worker"), ": ", size, size == 1 ? " is" : " are",
                          " ready and elastic.min_workers is ", least, WhyUnplaced(context, job)));
    return;
  }
  if (!Admit(context, job, members)) return;
  // A command that was without its coordinator for too long has ended, which is nobody's failure.
  if (!IsCommand(job) && IsUnexplained(job) && !SpendRestart(job)) {
    BeginEnding(context, job, FAILED,
                absl::StrCat("workers lost a peer ", job.restarts,
                             " times without a step between, and no worker had failed"),
                1);
    return;
  }
  Form(context, job, members);
  if (!held.empty()) HaveRegrouped(context, job);  // those who have stayed leave next
}

void NoteResumed(Context& context, Job& job, int64_t resumed) {
  if (job.generation.resumed == resumed || job.state != RUNNING) return;
  if (!HasActiveGeneration(job) || !LooksForCheckpoint(job)) return;
  job.generation.resumed = resumed;
  SetState(context, job, RUNNING,
           absl::StrCat(GenerationText(job), " goes on after step ", resumed,
                        resumed > 0 ? ", that of the checkpoint" : ""));
}

void AbortCurrentGeneration(Context& context, Job& job, const std::string& reason) {
  if (job.generation.message.generation() == 0 || job.generation.aborted) return;
  job.generation.aborted = true;
  job.generation.abort_reason = reason;
  job.generation.aborted_at = context.now;
  job.generation.regroup.reset();
  context.touched_jobs.insert(job.id);
}

namespace {

// What all members of the newest generation are told of it; made when the first one is.
class GenerationNews {
 public:
  GenerationNews(const Context& context, const Job& job) : context_(context), job_(job) {}
  std::shared_ptr<const Generation> Get() {
    if (news_) return news_;
    auto news = std::make_shared<Generation>(job_.generation.message);
    news->set_secret(GenerationSecret(context_.state.secret, job_.id, news->generation()));
    return news_ = std::move(news);
  }

 private:
  const Context& context_;
  const Job& job_;
  std::shared_ptr<const Generation> news_;
};

void PushWorker(Context& context, const Job& job, Worker& worker, GenerationNews& news) {
  if (worker.session == 0 || worker.sent.exit) return;
  const int64_t number = job.generation.message.generation();
  const bool leave =
      job.final() || (job.ending && !job.ending->kill && job.ending->target != FAILED);
  if (leave) {
    WorkerCommand command;
    command.mutable_exit()->set_reason(job.ending ? job.ending->reason : job.reason);
    const bool good = worker.finished || (job.ending && job.ending->target == SUCCEEDED);
    command.mutable_exit()->set_code(good ? 0 : 1);
    worker.sent.exit = true;
    Send(context, worker, std::move(command));
    return;
  }
  if (worker.leaving()) {
    const auto node = context.state.nodes.find(worker.node_id);
    const bool drained = node != context.state.nodes.end() && node->second.drain.has_value();
    WorkerCommand command;
    command.mutable_exit()->set_reason(drained ? "its node is drained"
                                               : "the job goes on with fewer workers");
    worker.sent.exit = true;
    Send(context, worker, std::move(command));
    return;
  }
  if (number == 0 || !IsMember(job, worker)) return;
  if (job.generation.aborted) {
    if (worker.sent.abort == number) return;
    WorkerCommand command;
    command.mutable_abort()->set_generation(number);
    command.mutable_abort()->set_reason(job.generation.abort_reason);
    worker.sent.abort = number;
    Send(context, worker, std::move(command));
    return;
  }
  if (worker.sent.generation != number) {
    worker.sent.generation = number;
    context.effects.to_workers.push_back({worker.session, {}, false, news.Get()});
  }
  if (job.generation.regroup && worker.sent.regroup != number) {
    WorkerCommand regroup;
    regroup.mutable_regroup()->set_generation(number);
    regroup.mutable_regroup()->set_reason(*job.generation.regroup);
    worker.sent.regroup = number;
    Send(context, worker, std::move(regroup));
  }
  if (job.drain && !worker.sent.drain) {
    WorkerCommand drain;
    drain.mutable_drain()->set_reason(*job.drain);
    *drain.mutable_drain()->mutable_grace() = job.spec().preemption().grace();
    worker.sent.drain = true;
    Send(context, worker, std::move(drain));
  }
}

}  // namespace

void PushWorkers(Context& context, Job& job) {
  GenerationNews news(context, job);
  for (Slot& slot : job.slots) {
    if (slot.worker) PushWorker(context, job, *slot.worker, news);
  }
}

}  // namespace lockstep::coordinator
