// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/log_forwarder.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::launcher {
namespace {

std::string NoteOf(int64_t lines) {
  return absl::StrCat("[", lines, lines == 1 ? " line is" : " lines are",
                      " not shown here, they came too fast; the log files have all of them]");
}

}  // namespace

std::optional<AgentMessage> LogForwarder::Forward(const WorkerAssignment& worker, bool is_stderr,
                                                  const std::vector<std::string>& lines) {
  AgentMessage message = MessageOf(worker, is_stderr);
  LogLines* out = message.mutable_log()->mutable_lines();
  for (const std::string& all : lines) {
    if (IsRedrawnOn(all)) continue;
    const std::string line(LastState(all));
    if (!budget_.Take(static_cast<int64_t>(line.size()) + 16)) {
      Dropped& dropped = dropped_[worker.incarnation()];
      ++dropped.lines;
      dropped.is_stderr = is_stderr;
      continue;
    }
    if (const auto found = dropped_.find(worker.incarnation()); found != dropped_.end()) {
      out->add_lines(NoteOf(found->second.lines));
      dropped_.erase(found);
    }
    out->add_lines(ToUtf8(line));
  }
  if (out->lines_size() == 0) return std::nullopt;
  return message;
}

std::optional<AgentMessage> LogForwarder::Ended(const WorkerAssignment& worker) {
  const auto found = dropped_.find(worker.incarnation());
  if (found == dropped_.end()) return std::nullopt;
  AgentMessage message = MessageOf(worker, found->second.is_stderr);
  message.mutable_log()->mutable_lines()->add_lines(NoteOf(found->second.lines));
  dropped_.erase(found);
  return message;
}

AgentMessage LogForwarder::MessageOf(const WorkerAssignment& worker, bool is_stderr) const {
  AgentMessage message;
  LogChunk* chunk = message.mutable_log();
  chunk->set_job_id(worker.job_id());
  chunk->set_worker_incarnation(worker.incarnation());
  LogLines* lines = chunk->mutable_lines();
  lines->set_slot(worker.slot());
  lines->set_host(host_);
  lines->set_is_stderr(is_stderr);
  return message;
}

}  // namespace lockstep::launcher
