// SPDX-License-Identifier: Apache-2.0
// The events of all jobs, and one bound on what their log lines take together: those of the jobs
// that ended longest ago go first, the oldest of each first, until the jobs that ended have a
// quarter of all. Of what is left each job that runs has an equal share where that is too little,
// and only those lose lines that have more. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_OUTBOX_EVENT_LOGS_H_
#define LOCKSTEP_COORDINATOR_OUTBOX_EVENT_LOGS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "coordinator/outbox/event_log.h"

namespace lockstep::coordinator {

class EventLogs {
 public:
  // Events are numbered after `first_sequence`. `most_log_bytes` is of memory; a job that runs
  // keeps the newest event with lines in any case.
  EventLogs(int64_t first_sequence, size_t most_log_bytes)
      : first_sequence_(first_sequence), most_log_bytes_(most_log_bytes) {}

  EventLogs(const EventLogs&) = delete;
  EventLogs& operator=(const EventLogs&) = delete;

  // Gives the event the job's next sequence number, and makes room where lines are too many.
  void Append(const std::string& job_id, JobEvent event);
  // The job's events go, if it has any.
  void Forget(const std::string& job_id);

  // Null: nothing was appended, or it is forgotten. The log lives until the next call.
  const EventLog* Find(const std::string& job_id) const;

  // Returns what the kept log lines of all jobs take, in bytes of memory.
  size_t log_bytes() const { return log_bytes_; }

 private:
  struct Job {
    EventLog log;
    int64_t end = 0;  // its number among the ends; 0: it runs
  };
  void Fit();
  void DropOldestOfEnded();
  bool FitRunning();
  // Returns how many bytes that gave.
  size_t DropOldestLines(EventLog& log);

  const int64_t first_sequence_;
  const size_t most_log_bytes_;
  std::map<std::string, Job> jobs_;  // by id
  std::map<int64_t, Job*> ended_;    // with lines, in the order of their ends
  int64_t last_end_ = 0;
  size_t log_bytes_ = 0;
  size_t ended_bytes_ = 0;  // of these, in `ended_`
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_OUTBOX_EVENT_LOGS_H_
