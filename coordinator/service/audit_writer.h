// SPDX-License-Identifier: Apache-2.0
// The file of an audit (audit.h), written by a thread of its own: a file system that does not
// answer holds up that thread, and nobody else. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_AUDIT_WRITER_H_
#define LOCKSTEP_COORDINATOR_SERVICE_AUDIT_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/thread.h"

namespace lockstep::coordinator {

class AuditWriter {
 public:
  struct Limits {
    int64_t file_bytes = int64_t{16} << 20;      // of a file, before it becomes FILE.1
    size_t waiting_bytes = size_t{4} << 20;      // of lines that wait for the file system
    absl::Duration patience = absl::Seconds(3);  // with a file system on which no line moves
  };

  // What came of a line that was waited for.
  struct Outcome {
    absl::Status status;
    bool may_come = false;  // of an error: nobody knows yet
  };

  // The file is made with the first line. `lost_line` makes the line in the place of so many that
  // are missing: it is called on any thread while this lives, and must not block.
  AuditWriter(std::string file, Limits limits, std::function<std::string(int64_t lines)> lost_line);
  // Writes what waits. Blocks for the file system, while its lines move on: what waits then is in
  // the log, and the thread that hangs is left to the end of the process.
  ~AuditWriter();

  // Has the line written, after those that were added before it. Does not block. One that finds no
  // room, or that the disk refuses, is in the log alone, and the next one that is written has a
  // line before it that says how many are missing.
  void Add(std::string line);
  // The same, and waits until it is on the disk (fdatasync(2)). Blocks while lines move on. Errors:
  // Unavailable: none has for the whole patience, or too much waits; else those of the file system:
  // nothing of the line is there.
  Outcome Write(std::string line);
  // Waits until all lines that were added are written, or refused by the disk. Blocks while lines
  // move on. Errors: Unavailable: none has for the whole patience.
  absl::Status AwaitWritten();

 private:
  class File;
  struct Shared;
  absl::Status NoAnswer() const;

  const std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
  Thread thread_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_AUDIT_WRITER_H_
