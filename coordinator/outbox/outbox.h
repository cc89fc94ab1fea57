// SPDX-License-Identifier: Apache-2.0
// The order between the core, the journal and everybody who is told something: nothing is said
// before the rows that it follows from are saved. A pure machine, like the core that it drives:
// what happened and when goes in, what to write and whom to tell comes out; no I/O, no clock, no
// threads. Steps go on during a write, and share the next one.
//
// A user's request is written down before the core is asked (request_rows.h). While the disk is
// full requests are refused and what happens to agents and workers is kept (core.h, SaveFailed),
// bounded by the size of the state; writing is tried again and again. Any other failure of the
// journal ends the coordinator: what is on the disk is not known, and another one that reads it
// does. While what was decided waits to be said, the core is told so (Held), and judges nobody.
// Thread-safety: thread-compatible; the caller guards it.
#ifndef LOCKSTEP_COORDINATOR_OUTBOX_OUTBOX_H_
#define LOCKSTEP_COORDINATOR_OUTBOX_OUTBOX_H_

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/core.h"
#include "coordinator/outbox/batch.h"
#include "coordinator/outbox/request_rows.h"

namespace lockstep::coordinator {

// Who speaks; on every command.
struct Speaker {
  std::string cluster_id;  // of the journal
  int64_t epoch = 1;       // coordinators that have used the journal, with this one
  // Shows agents' later coordinators that there was this one (service/epoch_proof.h).
  std::string epoch_proof = {};
};

// What is to be done now. Rows are to be written as one batch, and the outbox told how that went;
// until then it asks for no other write.
struct Outgoing {
  std::vector<Row> write;
  std::vector<ToAgent> to_agents;
  std::vector<ToWorker> to_workers;
  std::vector<Append> events;
  std::vector<std::string> forgotten_jobs;
  std::vector<Answer> answers;
};

class Outbox {
 public:
  // The core hears of it when what was decided has waited so long to be said.
  static constexpr absl::Duration kHeldAfter = absl::Milliseconds(100);
  // While a write takes longer than this, requests are refused, and who asks how things are is
  // told.
  static constexpr absl::Duration kSlowAfter = absl::Seconds(1);
  // How soon after a failed write the next one is tried.
  static constexpr absl::Duration kRetry = absl::Milliseconds(100);

  Outbox(Speaker speaker, State state);

  // Carries out what an earlier coordinator wrote down and did not come to, in order.
  Outgoing Begin(const std::vector<StoredRequest>& requests, absl::Time now);
  // Something happened. `ticket`, if not 0, is answered once.
  Outgoing Handle(const Event& event, int64_t ticket, absl::Time now);
  // Somebody is shown how things are: answers `ticket` when all of that is saved. Errors, with
  // which it may be lost with this coordinator: ResourceExhausted (there is no room for it),
  // DeadlineExceeded (the disk has not answered for kSlowAfter), Unavailable (the journal has
  // failed).
  Outgoing AwaitSaved(int64_t ticket, absl::Time now);
  // How the write went that was asked for. ResourceExhausted: the disk is full; other errors are
  // for good.
  Outgoing Written(const absl::Status& status, absl::Time now);
  // Time has passed.
  Outgoing Wake(absl::Time now);
  // When Wake is due.
  absl::Time wake_at() const;

  const State& state() const { return state_; }
  const Speaker& speaker() const { return speaker_; }
  // Why the last write failed; OK: it did not, or has been made good.
  const absl::Status& trouble() const { return trouble_; }
  // The journal has failed for good, and the process is to end; nothing is said any more.
  bool broken() const { return broken_; }
  // Returns what was decided has waited long to be said, and the core was told so.
  bool holding() const { return held_; }
  // Returns whether the id is that of a job, or of one that waits to be accepted.
  bool KnowsJob(const std::string& job_id) const;

 private:
  void Admit(const Event& event, int64_t ticket, absl::Time now, Outgoing& out);
  void Take(const Event& event, int64_t ticket, const std::string& request_key, absl::Time now,
            Outgoing& out);
  void Advance(absl::Time now, Outgoing& out);
  void AnswerLate(absl::Time now, Outgoing& out);
  void HoldOrRelease(absl::Time now, Outgoing& out);
  void Tell(Batch batch, Outgoing& out);
  void OnFull(absl::Time now, Outgoing& out);
  void OnBroken(Outgoing& out);
  void Refuse(int64_t ticket, absl::Status why, Outgoing& out);
  // Since when the oldest waits that is not said.
  absl::Time Oldest() const { return std::min(writing_.since, queued_.since); }

  const Speaker speaker_;
  State state_;
  absl::Time core_wake_ = absl::InfiniteFuture();
  Batch writing_;
  bool is_writing_ = false;
  Batch queued_;  // after it
  absl::Status trouble_;
  bool broken_ = false;
  absl::Time retry_at_ = absl::InfinitePast();
  bool held_ = false;  // the core was told
  int64_t last_request_ = 0;
  std::set<std::string> waiting_jobs_;  // that are written down and not carried out
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_OUTBOX_OUTBOX_H_
