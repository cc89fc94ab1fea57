// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/log_forwarder.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::launcher {

std::optional<AgentMessage> LogForwarder::Forward(const WorkerAssignment& worker, bool is_stderr,
                                                  const std::vector<std::string>& lines) {
  AgentMessage message;
  LogChunk* chunk = message.mutable_log();
  chunk->set_job_id(worker.job_id());
  chunk->set_worker_incarnation(worker.incarnation());
  LogLines* out = chunk->mutable_lines();
  out->set_slot(worker.slot());
  out->set_host(host_);
  out->set_is_stderr(is_stderr);
  for (const std::string& line : lines) {
    if (!budget_.Take(static_cast<int64_t>(line.size()) + 16)) {
      ++dropped_;
      continue;
    }
    if (dropped_ > 0) {
      out->add_lines(absl::StrCat("[", dropped_, " lines are not shown here, they came too fast; ",
                                  "the log files have all of them]"));
      dropped_ = 0;
    }
    out->add_lines(ToUtf8(line));
  }
  if (out->lines_size() == 0) return std::nullopt;
  return message;
}

}  // namespace lockstep::launcher
