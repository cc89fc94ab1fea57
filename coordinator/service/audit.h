// SPDX-License-Identifier: Apache-2.0
// Who changed what: a line of JSON for each request that changes something, whatever came of it,
// and for each call that somebody's role does not allow. What changes who gets in has a line before
// it, too: of a coordinator that ends before it answers the next one carries out what was asked.
// docs/security.md describes its fields. No token and nothing of a job's env or secrets is in it.
//
// The file is its owner's alone (0600). When it has 16 MiB it becomes FILE.1, that FILE.2, up to
// FILE.4. A line is whole or missing. Lines are written in their order by a thread of its own
// (audit_writer.h), so that a file system that does not answer holds nobody up. Those that the disk
// refuses, and those that come when too many wait for it, are in the coordinator's log alone, and
// the next one that is written has a line before it that says how many.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_AUDIT_H_
#define LOCKSTEP_COORDINATOR_SERVICE_AUDIT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "coordinator/service/audit_writer.h"
#include "proto/access.pb.h"

namespace lockstep::coordinator {

// What was asked for.
struct AuditEntry {
  Requester who;
  std::string what = {};    // "cancel"
  std::string on = {};      // the job, node or token, as it was named
  std::string detail = {};  // "4 workers"
};

// One line without its end. Texts of more than 1,024 bytes are clipped, and say so.
std::string AuditLine(const AuditEntry& entry, const absl::Status& outcome, absl::Time now);
// The same of what is asked for, and has no outcome yet.
std::string AskedLine(const AuditEntry& entry, absl::Time now);

class Audit {
 public:
  // `file` empty: nothing is kept. `clock` counts days; `wall` has the time of day, which lines
  // bear. Both outlive this.
  Audit(std::string file, Clock* clock, Clock* wall, AuditWriter::Limits limits = {});

  // Adds a line. Does not block.
  void Note(const AuditEntry& entry, const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds the line of what a caller may do over and over though it changes nothing: at the same
  // caller's 1st, 2nd, 4th, 8th time and so on, with the number, so that they can't push out all
  // other lines. Who has not done so for a day begins at 1 again. Does not block.
  void NoteRepeated(AuditEntry entry, const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds the line of a request before it is carried out, and waits until it is written: for 3 s of
  // a file system that does not answer. Errors: Unavailable (it does not), ResourceExhausted (it
  // has no room), FailedPrecondition (it refuses the line otherwise): the request is not to be
  // carried out, which the audit has: as the request's outcome, Aborted, where the line may come
  // all the same; else as a refused `call` ("Access/RevokeToken"), as NoteRepeated does.
  absl::Status NoteAsked(const AuditEntry& entry, const std::string& call) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the lines so far are written or refused, as NoteAsked does. Errors: Unavailable:
  // the file system does not answer.
  absl::Status AwaitWritten();

 private:
  struct Repeated {
    int64_t times = 0;
    absl::Time last;
  };
  // Counts once more what was done, and returns how often that was by now. `shared` is set where
  // it is counted together with the same of other callers.
  int64_t CountAgain(const AuditEntry& entry, absl::Time now, bool* shared)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  Clock* const wall_;
  const std::unique_ptr<AuditWriter> writer_;  // null: nothing is kept
  absl::Mutex mu_;
  std::map<std::string, Repeated> repeated_ ABSL_GUARDED_BY(mu_);  // by caller and call
  absl::Time forget_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_AUDIT_H_
