// SPDX-License-Identifier: Apache-2.0
#include "launcher/supervisor/kept_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace lockstep::launcher {
namespace {

constexpr size_t kReadAtOnce = 256 << 10;

}  // namespace

KeptOutput::KeptOutput(UniqueFd out, UniqueFd err, UniqueFd log) : log_(std::move(log)) {
  streams_[0].fd = std::move(out);
  streams_[1].fd = std::move(err);
  UseLog();
}

void KeptOutput::UseLog() {
  log_file_.Use(UniqueFd(::fcntl(log_.get(), F_DUPFD_CLOEXEC, 0)), "a worker's log");
  log_works_ = log_file_.fd() >= 0;
}

void KeptOutput::Begin(int stream, const std::string& partial) {
  std::vector<std::string> lines;
  streams_[stream].splitter.Feed(partial, &lines);
  Take(stream, lines);
}

void KeptOutput::Read(int stream) {
  Stream& from = streams_[stream];
  std::vector<std::string> lines;
  char buffer[64 << 10];
  for (size_t total = 0; from.fd.valid() && total < kReadAtOnce;) {
    const ssize_t n = ::read(from.fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      from.splitter.Finish(&lines);
      from.fd.reset();
      break;
    }
    from.splitter.Feed(std::string_view(buffer, static_cast<size_t>(n)), &lines);
    total += static_cast<size_t>(n);
  }
  Take(stream, lines);
}

void KeptOutput::Take(int stream, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  // Without a log the job goes on, and the lines wait for an agent that can write them.
  size_t logged = 0;
  if (log_works_) log_works_ = log_file_.Append(Joined(lines), &logged).ok();
  for (size_t i = 0; i < lines.size(); ++i) {
    bytes_ += lines[i].size() + 1;
    lines_.push_back({stream, lines[i], i < logged});
  }
  while (bytes_ > kBytes) {
    bytes_ -= lines_.front().text.size() + 1;
    if (!lines_.front().logged) ++lost_;
    lines_.pop_front();
  }
}

void KeptOutput::HandOver(KeptProcess* kept) {
  for (const Line& printed : lines_) {
    PrintedLine* const line = kept->add_lines();
    line->set_is_stderr(printed.stream == 1);
    line->set_text(printed.text);
    line->set_unlogged(!printed.logged);
  }
  kept->set_lost_lines(lost_);
  lines_.clear();
  bytes_ = 0;
  lost_ = 0;
  // It may work again when this agent is gone, too.
  if (!log_works_) UseLog();
  for (Stream& stream : streams_) {
    kept->add_partial(stream.splitter.partial());
    stream.splitter = LineSplitter();
  }
}

}  // namespace lockstep::launcher
