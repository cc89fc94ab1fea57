// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/printable.h"
#include "coordinator/core/checkpoints.h"
#include "coordinator/core/failures.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/open_faults.h"
#include "coordinator/core/reachability.h"
#include "coordinator/core/returns.h"
#include "coordinator/core/sessions.h"
#include "coordinator/core/trained.h"

namespace lockstep::coordinator {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 53;

void SendAway(Context& context, SessionId session, const std::string& why) {
  ToWorker reply;
  reply.session = session;
  reply.command.mutable_exit()->set_reason(why);
  reply.command.mutable_exit()->set_code(1);
  reply.close = true;
  context.effects.to_workers.push_back(std::move(reply));
}

void CutOff(Context& context, SessionId session) {
  ToWorker end;
  end.session = session;
  end.close = true;
  context.effects.to_workers.push_back(std::move(end));
}

// Returns whether the incarnation, "<job>.<place>.<life>", is a life that an agent was told to
// start, as far as is known here: the newest one of a place may still wait for a node.
bool WasStarted(const Job& job, const std::string& incarnation) {
  const std::vector<absl::string_view> parts = absl::StrSplit(incarnation, '.');
  size_t place = 0;
  int64_t life = 0;
  return parts.size() == 3 && absl::SimpleAtoi(parts[1], &place) &&
         absl::SimpleAtoi(parts[2], &life) && place < job.slots.size() &&
         (life < job.slots[place].lives ||
          (life == job.slots[place].lives && !job.slots[place].unplaced()));
}

void OnHello(Context& context, SessionId session, const WorkerMessage& message) {
  const WorkerHello& hello = message.hello();
  const int own = context.state.options.protocol_version;
  if (!IsServed(hello.protocol_version(), own)) {
    // One that obeyed another coordinator goes on without this one, until its agent ends it.
    if (hello.epoch() > 0) return CutOff(context, session);
    return SendAway(context, session,
                    absl::StrCat("the worker speaks protocol ", hello.protocol_version(),
                                 ", the coordinator ", own, " and ", OldestServed(own)));
  }
  Job* job = FindJob(context.state, message.job_id());
  Worker* worker = job == nullptr ? nullptr : FindWorker(*job, message.incarnation());
  if (hello.epoch() == 0 && (job == nullptr || !WasStarted(*job, message.incarnation()))) {
    // It has obeyed nobody yet, so it was started by the wish of another coordinator, which may be
    // this one's successor. If it is not wanted its agent ends it.
    return CutOff(context, session);
  }
  if (worker == nullptr || worker->gone() || worker->phase == Worker::Phase::kUnplaced) {
    return SendAway(
        context, session,
        absl::StrCat("this worker (", message.incarnation(), ") is not wanted any more"));
  }
  // What it said on an earlier connection may come after it is back on a newer one.
  if (session < worker->session) return CutOff(context, session);
  if (worker->session != session) {
    context.state.worker_sessions.erase(worker->session);
    worker->ready.reset();  // what it is now follows
    worker->connected_since = context.now;
    worker->beats = 0;
  }
  worker->session = session;
  worker->phase = std::max(worker->phase, Worker::Phase::kStarted);
  worker->pid = hello.pid();
  worker->sent = Worker::Sent{};
  if (worker->progress_moved == absl::InfinitePast()) worker->progress_moved = context.now;
  context.state.worker_sessions[session] = {job->id, worker->incarnation};
}

void OnHeartbeat(Context& context, Job& job, Worker& worker, const WorkerHeartbeat& heartbeat) {
  ++worker.beats;
  if (worker.beats == kBeatsOfAccount && context.now < job.forgiven && AnyFailed(job)) {
    context.touched_jobs.insert(job.id);
  }
  NoteRecovery(job, heartbeat, context.now);
  const bool current = heartbeat.generation() == job.generation.message.generation();
  if (current && (heartbeat.resumed_step() > 0 || heartbeat.has_since_first_commit())) {
    NoteResumed(context, job, heartbeat.resumed_step());
  }
  job.generation.stepped |= current && heartbeat.has_since_first_commit();
  if (heartbeat.progress_counter() != worker.progress_counter) {
    worker.progress_counter = heartbeat.progress_counter();
    worker.progress_moved = context.now;
  }
  if (heartbeat.has_since_restored() && heartbeat.has_since_first_commit()) {
    worker.first_step =
        FromProto(heartbeat.since_restored()) - FromProto(heartbeat.since_first_commit());
  }
  worker.waits = heartbeat.waiting_for() != 0;
  worker.heartbeat = heartbeat;
  if (!heartbeat.has_progress()) return;
  const int64_t steps = heartbeat.progress().step() - worker.progress.step();
  if (steps > 0) {
    if (worker.step_seen != absl::InfinitePast()) {
      if (worker.step_times.size() >= Worker::kStepTimes) {
        worker.step_times.erase(worker.step_times.begin());
      }
      worker.step_times.push_back((context.now - worker.step_seen) / steps);
    }
    worker.step_seen = context.now;
    if (!job.stepped) context.touched_jobs.insert(job.id);
    job.stepped = true;
    job.reach_tries = job.standstills = 0;
    job.reach_text.clear();
  }
  NoteTraining(context, job, worker, heartbeat.progress().train_seconds());
  worker.progress = heartbeat.progress();
  if (current && steps > 0) ForgetSilences(job);
  if (!IsRankZero(job, worker)) return;
  job.progress = heartbeat.progress();
  job.progress_pending = true;
  const absl::Time due = job.progress_sent + context.state.options.progress_every;
  if (context.now >= due) {
    context.touched_jobs.insert(job.id);
  } else {
    SetCheck(context.state, job, std::min(job.next_check, due));
    context.state.wake_at = std::min(context.state.wake_at, due);
  }
}

bool CanBe(const Job& job, const WorkerReady& ready) {
  const int64_t number = job.generation.message.generation();
  return ready.highest_generation() >= 0 && ready.highest_generation() <= number + kMostAhead &&
         ready.committed_step() >= 0 && ready.committed_step() <= kMostSteps;
}

// Reports its state anew after a connection was lost, or because it left its generation.
void OnReady(Context& context, Job& job, Worker& worker, const WorkerReady& ready) {
  const int64_t number = job.generation.message.generation();
  const bool left = HasActiveGeneration(job) && IsMember(job, worker) && !job.generation.regroup &&
                    ready.highest_generation() >= number;
  worker.ready = ready;
  worker.was_ready = true;
  job.stepped |= ready.committed_step() > 0;
  // Somebody has to do the rest with it.
  if (job.generation.aborted || job.generation.regroup) worker.finished.reset();
  context.touched_jobs.insert(job.id);
  // Who could reach only some of its peers waits for what is decided about all, and who heard of
  // such a one for what it says.
  if (!left || HasCuts(job) || AwaitsFirstHand(job)) return;
  job.suspected = std::min(job.suspected, context.now);
  AbortCurrentGeneration(context, job, absl::StrCat("rank ", worker.slot, " left the generation"));
  worker.ready = ready;
}

bool IsOfTheNetwork(const PeerLost& lost) {
  return lost.kind() == PeerLost::UNREACHABLE || lost.kind() == PeerLost::SILENT ||
         lost.kind() == PeerLost::DAMAGED;
}

void OnPeerLost(Context& context, Job& job, Worker& worker, const PeerLost& lost) {
  if (lost.generation() != job.generation.message.generation()) return;
  context.touched_jobs.insert(job.id);
  // Of a way between two others it knows nothing of its own.
  const bool hearsay = IsOfTheNetwork(lost) && lost.rank() < 0;
  // Those who could not reach each other end connections that others have, who leave in their turn.
  const bool follows = HasCuts(job) ? IsOfTheNetwork(lost) || lost.rank() < 0
                                    : AwaitsFirstHand(job) && lost.rank() < 0;
  if (IsOfTheNetwork(lost)) {
    // Nobody has failed: whoever left the generation because of it is explained.
    job.suspected = absl::InfiniteFuture();
    if (lost.kind() == PeerLost::UNREACHABLE) return NoteUnreachable(context, job, worker, lost);
  } else if (!job.generation.aborted && !follows) {
    job.suspected = std::min(job.suspected, context.now);
  }
  worker.peer_lost = lost;
  const auto& members = job.generation.message.members();
  const bool named = lost.rank() >= 0 && lost.rank() < members.size();
  worker.lost_peer = named ? members[lost.rank()].incarnation() : "";
  if (follows) return;
  std::string said =
      absl::StrCat("rank ", worker.slot,
                   named ? absl::StrCat(" lost rank ", lost.rank()) : " left the generation", ": ",
                   lost.detail());
  if (hearsay) return NoteHearsay(context, job, std::move(said));
  AbortCurrentGeneration(context, job, said);
}

void OnEval(Context& context, Job& job, const EvalResult& eval) {
  if (job.final() || (job.eval && job.eval->step() >= eval.step())) return;
  job.eval = eval;
  context.touched_jobs.insert(job.id);
  JobEvent event;
  *event.mutable_eval() = eval;
  AppendEvent(context, job, std::move(event));
}

// Notes that it lives. What it did in a silence it says with its next heartbeat, and not with what
// comes before that, such as the hello of a new connection: until then it does not stand still.
void NoteLife(const Context& context, const Job& job, Worker& worker) {
  const bool was_silent = context.now - worker.last_heard > FailureDetection(job) / 2;
  if (was_silent) worker.back_since = context.now;
  worker.last_heard = context.now;
}

// A worker said why it gives up, and its death was heard first.
void OnLastWords(Context& context, const WorkerMessage& message) {
  Job* job = FindJob(context.state, message.job_id());
  Worker* worker = job == nullptr ? nullptr : FindFormer(*job, message.incarnation());
  if (worker == nullptr || worker->failed) return;
  worker->failed = message.failed();
  worker->failed_serial = context.state.serial;
  context.touched_jobs.insert(job->id);
}

}  // namespace

void OnWorkerSaid(Context& context, const WorkerSaid& event) {
  const WorkerMessage& message = event.message;
  if (!event.shown.empty() && message.incarnation() != event.shown) {
    return SendAway(context, event.session,
                    absl::StrCat("the token shown is that of worker ", event.shown, ", not of ",
                                 Printable(message.incarnation())));
  }
  if (message.has_hello()) OnHello(context, event.session, message);
  auto known = context.state.worker_sessions.find(event.session);
  if (known == context.state.worker_sessions.end()) {
    if (message.has_failed()) return OnLastWords(context, message);
    if (!message.has_hello()) SendAway(context, event.session, "say hello first");
    return;
  }
  Job* job = FindJob(context.state, known->second.first);
  Worker* worker = job == nullptr ? nullptr : FindWorker(*job, known->second.second);
  if (worker == nullptr)
    return SendAway(context, event.session, "this worker is not wanted any more");
  NoteLife(context, *job, *worker);
  if (message.has_peer_lost() || message.has_finished()) ++worker->reports;
  switch (message.message_case()) {
    case WorkerMessage::kHello:
      context.touched_jobs.insert(job->id);
      break;
    case WorkerMessage::kReady:
      if (!CanBe(*job, message.ready())) {
        return SendAway(context, event.session,
                        absl::StrCat("it says that it has seen generation ",
                                     message.ready().highest_generation(), " and step ",
                                     message.ready().committed_step(), ", which cannot be"));
      }
      OnReady(context, *job, *worker, message.ready());
      break;
    case WorkerMessage::kHeartbeat:
      OnHeartbeat(context, *job, *worker, message.heartbeat());
      break;
    case WorkerMessage::kEval:
      OnEval(context, *job, message.eval());
      break;
    case WorkerMessage::kPeerLost:
      OnPeerLost(context, *job, *worker, message.peer_lost());
      break;
    case WorkerMessage::kFinished:
      if (!worker->finished) worker->finished = message.finished();
      context.touched_jobs.insert(job->id);
      break;
    case WorkerMessage::kFailed:
      if (worker->failed || worker->finished) break;
      worker->failed = message.failed();
      worker->failed_serial = context.state.serial;
      worker->failed_at = std::min(worker->failed_at, context.now);
      context.touched_jobs.insert(job->id);
      break;
    case WorkerMessage::kCheckpoint:
      OnCheckpoint(context, *job, *worker, message.checkpoint());
      break;
    case WorkerMessage::MESSAGE_NOT_SET:
      break;
  }
}

void OnWorkerGone(Context& context, const WorkerGone& event) {
  auto known = context.state.worker_sessions.find(event.session);
  if (known == context.state.worker_sessions.end()) return;
  if (Job* job = FindJob(context.state, known->second.first)) {
    Worker* worker = FindWorker(*job, known->second.second);
    if (worker != nullptr && worker->session == event.session) {
      worker->session = 0;
      worker->ready.reset();  // it says so again when it is back
      if (job->ending) context.touched_jobs.insert(job->id);
    }
  }
  context.state.worker_sessions.erase(known);
}

}  // namespace lockstep::coordinator
