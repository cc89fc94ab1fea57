// SPDX-License-Identifier: Apache-2.0
// What a process prints while no agent is there to read it: all of it goes to its log, the newest
// of it waits for the next agent, which writes it where the log could not be written, as on a full
// disk. The pipes stay open meanwhile, so nobody's print fails.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_SUPERVISOR_KEPT_OUTPUT_H_
#define LOCKSTEP_LAUNCHER_SUPERVISOR_KEPT_OUTPUT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/fd.h"
#include "launcher/agent/output.h"
#include "proto/supervisor.pb.h"

namespace lockstep::launcher {

class KeptOutput {
 public:
  static constexpr size_t kBytes = 64 << 10;  // of lines that wait

  // Non-blocking read ends of its pipes; any may be invalid.
  KeptOutput(UniqueFd out, UniqueFd err, UniqueFd log);

  // -1: it has ended, or there was none.
  int fd(int stream) const { return streams_[stream].fd.get(); }
  int log() const { return log_.get(); }
  // Reads what stream 0 (stdout) or 1 (stderr) has; closes it at its end.
  void Read(int stream);
  // Takes what an agent has read of the line that comes next.
  void Begin(int stream, const std::string& partial);
  // A line of our own.
  void AddLine(const std::string& line) { Take(1, {line}); }
  // Writes what waits, and what of a line is there, into `kept`, and begins anew: an agent reads
  // from now on.
  void HandOver(KeptProcess* kept);

 private:
  struct Stream {
    UniqueFd fd;
    LineSplitter splitter;
  };
  struct Line {
    int stream;
    std::string text;
    bool logged;
  };
  void UseLog();
  void Take(int stream, const std::vector<std::string>& lines);

  Stream streams_[2];
  UniqueFd log_;
  LogFile log_file_;  // on log_, until it fails
  bool log_works_ = true;
  std::deque<Line> lines_;
  int64_t lost_ = 0;  // lines that are neither in the log nor here
  size_t bytes_ = 0;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SUPERVISOR_KEPT_OUTPUT_H_
