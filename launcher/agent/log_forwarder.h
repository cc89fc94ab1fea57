// SPDX-License-Identifier: Apache-2.0
// What workers print as messages for the coordinator, within a budget: a worker that prints without
// end costs the others nothing. The log files have all of it.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_AGENT_LOG_FORWARDER_H_
#define LOCKSTEP_LAUNCHER_AGENT_LOG_FORWARDER_H_

#include <cstdint>
#include <optional>
#include <string>
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
  // lines were left out is said before the next that fits.
  std::optional<AgentMessage> Forward(const WorkerAssignment& worker, bool is_stderr,
                                      const std::vector<std::string>& lines);

 private:
  const std::string host_;
  ForwardBudget budget_;
  int64_t dropped_ = 0;
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_LOG_FORWARDER_H_
