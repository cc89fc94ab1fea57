// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/outbox.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "coordinator/core/context.h"
#include "coordinator/outbox/request_rows.h"

namespace lockstep::coordinator {
namespace {

// Log lines and progress are facts of others, which follow from no row.
bool NeedsNoJournal(const Append& append) {
  return append.event.has_log() || append.event.has_progress();
}

template <typename T>
void Stamp(const Speaker& speaker, std::vector<T>& messages) {
  for (T& message : messages) {
    // The end of a stream alone is nothing to obey: who hears it has obeyed nobody by that.
    if (message.close && message.command.command_case() == 0) continue;
    message.command.set_cluster_id(speaker.cluster_id);
    message.command.set_epoch(speaker.epoch);
    if constexpr (std::is_same_v<T, ToAgent>) {
      message.command.set_epoch_proof(speaker.epoch_proof);
    }
  }
}

absl::Status NoRoom(const absl::Status& trouble) {
  return Annotate(trouble, "the journal has no room");
}

template <typename T>
void MoveAll(std::vector<T>& from, std::vector<T>& to) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
  from.clear();
}

}  // namespace

Outbox::Outbox(Speaker speaker, State state)
    : speaker_(std::move(speaker)), state_(std::move(state)) {
  if (!state_.jobs.empty()) core_wake_ = absl::InfinitePast();  // how they stand is looked at soon
}

Outgoing Outbox::Begin(const std::vector<StoredRequest>& requests, absl::Time now) {
  Outgoing out;
  for (const StoredRequest& stored : requests) {
    last_request_ = std::max(last_request_, stored.number);
    Take(stored.event, 0, stored.key, now, out);
  }
  Advance(now, out);
  return out;
}

Outgoing Outbox::Handle(const Event& event, int64_t ticket, absl::Time now) {
  Outgoing out;
  if (broken_) {
    Refuse(ticket, absl::UnavailableError("the coordinator ends: its journal has failed"), out);
    return out;
  }
  if (const auto* gone = std::get_if<AgentGone>(&event)) queued_.DropAgent(gone->session);
  if (const auto* gone = std::get_if<WorkerGone>(&event)) queued_.DropWorker(gone->session);
  if (IsRequest(event)) {
    Admit(event, ticket, now, out);
  } else {
    Take(event, ticket, "", now, out);
  }
  Advance(now, out);
  return out;
}

Outgoing Outbox::Wake(absl::Time now) {
  Outgoing out;
  if (broken_) return out;
  if (now >= core_wake_) Take(Tick{}, 0, "", now, out);
  Advance(now, out);
  return out;
}

absl::Time Outbox::wake_at() const {
  if (broken_) return absl::InfiniteFuture();
  absl::Time next = core_wake_;
  if (!trouble_.ok() && !is_writing_) next = std::min(next, retry_at_);
  if (!held_ && Oldest() != absl::InfiniteFuture()) next = std::min(next, Oldest() + kHeldAfter);
  if (!writing_.shown.empty() || !queued_.shown.empty())
    next = std::min(next, Oldest() + kSlowAfter);
  return next;
}

Outgoing Outbox::AwaitSaved(int64_t ticket, absl::Time now) {
  Outgoing out;
  if (broken_) {
    Refuse(ticket, absl::UnavailableError("the coordinator ends: its journal has failed"), out);
    return out;
  }
  // What has come in and is not settled shows, too.
  if (state_.unsettled.any()) Take(Tick{}, 0, "", now, out);
  // After a failed write there are rows that are in no batch yet.
  const bool in_queue = !queued_.effects.rows.empty() || !trouble_.ok();
  if (in_queue || !writing_.effects.rows.empty()) {
    (in_queue ? queued_ : writing_).shown.push_back(ticket);
  } else {
    out.answers.push_back({ticket, absl::OkStatus(), {}, {}, true});
  }
  Advance(now, out);
  return out;
}

bool Outbox::KnowsJob(const std::string& job_id) const {
  return state_.jobs.count(job_id) != 0 || waiting_jobs_.count(job_id) != 0;
}

void Outbox::Refuse(int64_t ticket, absl::Status why, Outgoing& out) {
  if (ticket != 0) out.answers.push_back({ticket, std::move(why), {}, {}, false});
}

// A request is not carried out before it is on the disk, so one that is refused never happens.
void Outbox::Admit(const Event& event, int64_t ticket, absl::Time now, Outgoing& out) {
  if (!trouble_.ok()) {
    return Refuse(ticket,
                  Annotate(trouble_, "the coordinator takes no requests, its journal has no room"),
                  out);
  }
  if (const absl::Duration waited = now - Oldest(); waited >= kSlowAfter) {
    return Refuse(ticket,
                  absl::UnavailableError(absl::StrCat(
                      "the coordinator takes no requests: the disk of its journal has not ",
                      "answered for ", DurationText(waited))),
                  out);
  }
  if (const auto* submitted = std::get_if<Submitted>(&event)) {
    waiting_jobs_.insert(submitted->job_id);
  }
  queued_.Add(WaitingRequest{RequestRow(++last_request_, event), event, ticket}, now);
}

// One step of the core. A request's own row goes with what it leads to.
void Outbox::Take(const Event& event, int64_t ticket, const std::string& request_key,
                  absl::Time now, Outgoing& out) {
  Effects effects = Step(state_, event, now);
  core_wake_ = effects.wake_at;
  for (Append& append : effects.events) {
    if (NeedsNoJournal(append)) out.events.push_back(std::move(append));
  }
  std::erase_if(effects.events, [](const Append& a) {
    return a.event.event_case() == JobEvent::EVENT_NOT_SET || NeedsNoJournal(a);
  });
  const bool durable = !request_key.empty();
  if (durable) {
    effects.rows.push_back({request_key, "", true});
    effects.new_jobs.clear();  // it is accepted already
    if (const auto* submitted = std::get_if<Submitted>(&event)) {
      waiting_jobs_.erase(submitted->job_id);
    }
  }
  queued_.Add(std::move(effects), ticket, durable, now);
}

// Says what may be said and starts the next write.
void Outbox::Advance(absl::Time now, Outgoing& out) {
  if (!is_writing_ && (trouble_.ok() || now >= retry_at_)) {
    // A step writes again what could not be written.
    if (!trouble_.ok() && !queued_.HasRows()) Take(Tick{}, 0, "", now, out);
    if (queued_.HasRows()) {
      writing_ = std::exchange(queued_, {});
      is_writing_ = true;
      out.write = writing_.RowsToWrite();
    } else {
      trouble_ = absl::OkStatus();
      Tell(std::exchange(queued_, {}), out);
    }
  }
  AnswerLate(now, out);
  HoldOrRelease(now, out);
}

// Those who look at the state while the disk stands still.
void Outbox::AnswerLate(absl::Time now, Outgoing& out) {
  const absl::Duration waited = now - Oldest();
  if (waited < kSlowAfter) return;
  for (Batch* const batch : {&writing_, &queued_}) {
    for (const int64_t ticket : std::exchange(batch->shown, {})) {
      Refuse(ticket,
             trouble_.ok()
                 ? absl::DeadlineExceededError(absl::StrCat(
                       "the disk of the journal has not answered for ", DurationText(waited)))
                 : NoRoom(trouble_),
             out);
    }
  }
}

void Outbox::HoldOrRelease(absl::Time now, Outgoing& out) {
  const bool late = now - Oldest() >= kHeldAfter;
  if (late == held_) return;
  if (!late && !trouble_.ok()) return;
  held_ = late;
  if (late) {
    Take(Held{}, 0, "", now, out);
  } else {
    Take(Released{}, 0, "", now, out);
    Advance(now, out);
  }
}

void Outbox::Tell(Batch batch, Outgoing& out) {
  Stamp(speaker_, batch.effects.to_agents);
  Stamp(speaker_, batch.effects.to_workers);
  MoveAll(batch.effects.to_agents, out.to_agents);
  MoveAll(batch.effects.to_workers, out.to_workers);
  MoveAll(batch.effects.events, out.events);
  MoveAll(batch.effects.forgotten_jobs, out.forgotten_jobs);
  MoveAll(batch.answers, out.answers);
  for (const int64_t ticket : batch.shown) {
    out.answers.push_back({ticket, absl::OkStatus(), {}, {}, true});
  }
}

Outgoing Outbox::Written(const absl::Status& status, absl::Time now) {
  LS_CHECK(is_writing_);
  is_writing_ = false;
  Outgoing out;
  if (status.ok()) {
    trouble_ = absl::OkStatus();
    Batch saved = std::exchange(writing_, {});
    std::vector<WaitingRequest> requests = std::exchange(saved.requests, {});
    Tell(std::move(saved), out);
    for (const WaitingRequest& request : requests) {
      Take(request.event, request.ticket, request.row.key, now, out);
    }
    Advance(now, out);
    return out;
  }
  trouble_ = status;
  if (absl::IsResourceExhausted(status)) {
    OnFull(now, out);
  } else {
    OnBroken(out);
  }
  return out;
}

// Nothing of the batch and of the steps after it is saved, and they are not told. Requests that are
// not written down are refused; those that are will be carried out, and are answered.
void Outbox::OnFull(absl::Time now, Outgoing& out) {
  Batch all = std::exchange(writing_, {});
  all.Append(std::exchange(queued_, {}));
  for (const WaitingRequest& request : std::exchange(all.requests, {})) {
    if (const auto* submitted = std::get_if<Submitted>(&request.event)) {
      waiting_jobs_.erase(submitted->job_id);
    }
    Refuse(request.ticket,
           Annotate(trouble_, "the coordinator takes no requests, its journal has no room"), out);
  }
  for (Answer& answer : std::exchange(all.answers, {})) {
    if (!answer.durable) answer.status = NoRoom(trouble_);
    out.answers.push_back(std::move(answer));
  }
  for (const int64_t ticket : std::exchange(all.shown, {})) Refuse(ticket, NoRoom(trouble_), out);
  SaveFailed(state_, all.effects, now);
  core_wake_ = std::min(core_wake_, all.effects.wake_at);
  queued_ = std::move(all);
  retry_at_ = now + kRetry;
  HoldOrRelease(now, out);
}

void Outbox::OnBroken(Outgoing& out) {
  broken_ = true;
  const absl::Status why =
      absl::UnavailableError(absl::StrCat("the coordinator ends: ", trouble_.message()));
  for (const Batch* batch : {&writing_, &queued_}) {
    for (const Answer& answer : batch->answers) Refuse(answer.ticket, why, out);
    for (const WaitingRequest& request : batch->requests) Refuse(request.ticket, why, out);
    for (const int64_t ticket : batch->shown) Refuse(ticket, why, out);
  }
  writing_ = queued_ = {};
}

}  // namespace lockstep::coordinator
