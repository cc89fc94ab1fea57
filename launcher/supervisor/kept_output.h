// SPDX-License-Identifier: Apache-2.0
// What a process prints while no agent is there to read it: all of it goes to its log, the newest
// of it waits for the next agent. The pipes stay open meanwhile, so nobody's print fails.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_SUPERVISOR_KEPT_OUTPUT_H_
#define LOCKSTEP_LAUNCHER_SUPERVISOR_KEPT_OUTPUT_H_

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
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
  int log() const { return log_fd_; }
  // Reads what stream 0 (stdout) or 1 (stderr) has; closes it at its end.
  void Read(int stream);
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
  void Take(int stream, const std::vector<std::string>& lines);

  Stream streams_[2];
  int log_fd_;
  LogFile log_;
  std::deque<std::pair<int, std::string>> lines_;
  size_t bytes_ = 0;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SUPERVISOR_KEPT_OUTPUT_H_
