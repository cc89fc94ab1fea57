// SPDX-License-Identifier: Apache-2.0
#include "launcher/supervisor/kept_output.h"

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace lockstep::launcher {
namespace {

constexpr size_t kReadAtOnce = 256 << 10;

}  // namespace

KeptOutput::KeptOutput(UniqueFd out, UniqueFd err, UniqueFd log) : log_fd_(log.get()) {
  streams_[0].fd = std::move(out);
  streams_[1].fd = std::move(err);
  log_.Use(std::move(log), "a worker's log");
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
  // Without a log the job goes on; nobody is there to be told.
  if (!log_.Append(lines).ok()) log_fd_ = -1;
  for (const std::string& line : lines) {
    bytes_ += line.size() + 1;
    lines_.emplace_back(stream, line);
  }
  while (bytes_ > kBytes) {
    bytes_ -= lines_.front().second.size() + 1;
    lines_.pop_front();
  }
}

void KeptOutput::HandOver(KeptProcess* kept) {
  for (const auto& [stream, text] : lines_) {
    PrintedLine* const line = kept->add_lines();
    line->set_is_stderr(stream == 1);
    line->set_text(text);
  }
  lines_.clear();
  bytes_ = 0;
  for (Stream& stream : streams_) {
    kept->add_partial(stream.splitter.partial());
    stream.splitter = LineSplitter();
  }
}

}  // namespace lockstep::launcher
