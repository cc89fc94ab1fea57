// SPDX-License-Identifier: Apache-2.0
// What a process prints while no agent is there to read it: all of it goes to its log, the newest
// of it waits for the next agent, which writes it where the log could not be written, as on a full
// disk or on one that does not answer. The pipes stay open meanwhile, so nobody's print fails.
// Thread-safety: thread-compatible; the log is written on its disk's thread.
#ifndef LOCKSTEP_LAUNCHER_SUPERVISOR_KEPT_OUTPUT_H_
#define LOCKSTEP_LAUNCHER_SUPERVISOR_KEPT_OUTPUT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/fd.h"
#include "launcher/agent/output.h"
#include "launcher/agent/run_disk.h"
#include "proto/supervisor.pb.h"

namespace lockstep::launcher {

class KeptOutput {
 public:
  static constexpr size_t kBytes = 64 << 10;  // of lines that the log has, or will never have
  // Bytes of lines that wait for the log, beyond which nothing more is to be read.
  static constexpr size_t kRoom = RunDisk::kRoom;

  // Non-blocking read ends of its pipes; any may be invalid. `disk`, which outlives this, has the
  // log. `on_room`, unless it is null, is called on its thread whenever something was written.
  KeptOutput(UniqueFd out, UniqueFd err, UniqueFd log, RunDisk* disk,
             std::function<void()> on_room = nullptr);
  // What waits for the log is still written.
  ~KeptOutput();

  // -1: it has ended, or there was none.
  int fd(int stream) const { return streams_[stream].fd.get(); }
  int log() const;
  // Returns whether at most kRoom bytes wait for the log.
  bool has_room() const;
  // Reads what stream 0 (stdout) or 1 (stderr) has; closes it at its end.
  void Read(int stream);
  // Takes lines, each with its "\n", that an agent has read, and told of, and did not write.
  void TakeUnlogged(int stream, std::string_view lines);
  // Takes what an agent has read of the line that comes next.
  void Begin(int stream, const std::string& partial);
  // A line of our own.
  void AddLine(const std::string& line) { Take(1, {line}); }
  // Writes what waits, and what of a line is there, into `kept`, and begins anew: an agent reads
  // from now on, and has those lines to write that did not come to be written here. Does not wait
  // for the log.
  void HandOver(KeptProcess* kept);
  // Takes back what was handed over and did not come to the agent.
  void TakeBack(const KeptProcess& kept);

 private:
  class Log;
  struct Stream {
    UniqueFd fd;
    LineSplitter splitter;
  };
  void Take(int stream, const std::vector<std::string>& lines);

  Stream streams_[2];
  RunDisk* const disk_;
  std::shared_ptr<Log> log_;  // tasks of the disk use it, too
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SUPERVISOR_KEPT_OUTPUT_H_
