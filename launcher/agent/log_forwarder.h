// SPDX-License-Identifier: Apache-2.0
// What workers print as messages for the coordinator, within a budget: a worker that prints without
// end costs the others nothing. The log files have all of it.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_AGENT_LOG_FORWARDER_H_
#define LOCKSTEP_LAUNCHER_AGENT_LOG_FORWARDER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "launcher/agent/output.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

class LogForwarder {
 public:
  // At most `capacity` bytes at once and `bytes_per_second` for long.
  explicit LogForwarder(std::string host, int64_t capacity = 16 << 20,
                        int64_t bytes_per_second = 8 << 20)
      : host_(std::move(host)), budget_(capacity, bytes_per_second) {}

  // Called now and then while messages can be sent.
  void Fill(absl::Time now) { budget_.Fill(now); }
  // The message about `lines`, as far as the budget goes; none when nothing of them fits. How many
  // lines of the worker were left out is said before the next of it that fits. Of lines that are
  // redrawn it has what they show last, and nothing of pieces.
  std::optional<AgentMessage> Forward(const WorkerAssignment& worker, bool is_stderr,
                                      const std::vector<std::string>& lines);
  // The message for a worker that writes no more, when its last lines were left out: how many.
  std::optional<AgentMessage> Ended(const WorkerAssignment& worker);

 private:
  // What was left out of a worker's lines and is not said yet.
  struct Dropped {
    int64_t lines = 0;
    bool is_stderr = false;  // the newest
  };

  AgentMessage MessageOf(const WorkerAssignment& worker, bool is_stderr) const;

  const std::string host_;
  ForwardBudget budget_;                    // of all workers together
  std::map<std::string, Dropped> dropped_;  // by the worker's incarnation
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_LOG_FORWARDER_H_
