// SPDX-License-Identifier: Apache-2.0
#include "launcher/follow/standard_streams.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/status.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kFileAtOnce = size_t{256} << 10;
constexpr absl::Duration kLookAgain = absl::Minutes(1);
// A terminal with room for one byte takes no end of a line, which is two there.
constexpr absl::Duration kTryAgain = absl::Milliseconds(5);

bool LeadToTheSame(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino && one.st_rdev == other.st_rdev;
}

// A terminal takes all of a text before write(2) returns, however little room there was. So it is
// opened once more, to be written to without blocking: who shares `fd` is none the wiser. Invalid:
// it is no terminal, or may not be opened, as after su(1); then it is as it was.
UniqueFd OpenTerminal(int fd) {
  if (::isatty(fd) == 0) return UniqueFd();
  return UniqueFd(::open(absl::StrCat("/proc/self/fd/", fd).c_str(),
                         O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

StandardStreams::StandardStreams(int out, int err, absl::Duration still)
    : still_(still), wake_(::eventfd(0, EFD_CLOEXEC)) {
  LS_CHECK(wake_.valid()) << "eventfd failed";
  struct stat places[2] = {};
  bool there = true;
  {
    absl::MutexLock lock(&mu_);
    for (int stream = 0; stream < 2; ++stream) {
      Stream& of = streams_[stream];
      of.fd = stream == 0 ? out : err;
      there = ::fstat(of.fd, &places[stream]) == 0 && there;
      of.at_once = S_ISREG(places[stream].st_mode) ? kFileAtOnce : PIPE_BUF;
      of.terminal = OpenTerminal(of.fd);
      if (of.terminal.valid()) of.fd = of.terminal.get();
    }
  }
  same_place_ = there && LeadToTheSame(places[0], places[1]);
  thread_ = Thread("output", [this] { Run(); });
}

StandardStreams::~StandardStreams() {
  Flush().IgnoreError();
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  Wake();
  thread_.Join();
}

void StandardStreams::Wake() const {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

size_t StandardStreams::waiting() const {
  absl::MutexLock lock(&mu_);
  return waiting_;
}

absl::Status StandardStreams::out_failure() const {
  absl::MutexLock lock(&mu_);
  return out_failure_;
}

void StandardStreams::Take(int stream, std::string_view text) {
  if (text.empty()) return;
  {
    absl::MutexLock lock(&mu_);
    if (streams_[stream].waiting > (hurried_ ? kRoom : kMost)) {
      ++left_out_;
      if (stream == 0) {
        out_written_ = absl::UnavailableError("nobody reads it");
        out_failure_.Update(out_written_);
        newest_out_ = next_++;
      }
      return;
    }
    if (const int64_t left_out = std::exchange(left_out_, 0); left_out > 0) {
      Add(streams_[1], absl::StrCat("[", left_out, left_out == 1 ? " message is" : " messages are",
                                    " not shown here, since nobody read ",
                                    left_out == 1 ? "it" : "them", "]\n"));
    }
    if (stream == 0) newest_out_ = next_;
    Add(streams_[stream], std::string(text));
  }
  Wake();
}

void StandardStreams::Add(Stream& to, std::string text) {
  to.waiting += text.size();
  waiting_ += text.size();
  to.texts.push_back({next_++, std::move(text)});
}

void StandardStreams::AwaitRoom() {
  absl::MutexLock lock(&mu_);
  while (waiting_ > kRoom && !hurried_) changed_.WaitFor(&mu_, kLookAgain);
}

absl::Status StandardStreams::Flush() {
  absl::MutexLock lock(&mu_);
  while (waiting_ > 0) {
    if (!hurried_) {
      changed_.WaitFor(&mu_, kLookAgain);
      continue;
    }
    const size_t before = waiting_;
    const auto moves = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return waiting_ != before; };
    if (!changed_.AwaitFor(&mu_, still_, moves)) {
      return streams_[0].texts.empty() ? out_written_ : absl::UnavailableError("nobody reads it");
    }
  }
  return out_written_;
}

void StandardStreams::Hurry() {
  {
    absl::MutexLock lock(&mu_);
    hurried_ = true;
  }
  changed_.NotifyAll();
}

int StandardStreams::Oldest() const {
  const std::deque<Text>&out = streams_[0].texts, &err = streams_[1].texts;
  if (out.empty() || err.empty()) return !out.empty() ? 0 : !err.empty() ? 1 : -1;
  return out.front().number < err.front().number ? 0 : 1;
}

void StandardStreams::Run() {
  while (true) {
    pollfd fds[3] = {{-1, POLLOUT, 0}, {-1, POLLOUT, 0}, {wake_.get(), POLLIN, 0}};
    int oldest;
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return;
      oldest = Oldest();
      for (int stream = 0; stream < 2; ++stream) {
        const bool next = stream == oldest || (!same_place_ && !streams_[stream].texts.empty());
        if (next) fds[stream].fd = streams_[stream].fd;
      }
    }
    if (::poll(fds, 3, -1) < 0) continue;
    if (fds[2].revents != 0) {
      uint64_t count;
      (void)!::read(wake_.get(), &count, sizeof(count));
    }
    if (oldest < 0) continue;
    if (fds[oldest].revents == 0) oldest = 1 - oldest;
    if (fds[oldest].revents != 0) WriteSome(oldest);
  }
}

void StandardStreams::WriteSome(int stream) {
  std::string_view rest;
  int fd;
  {
    absl::MutexLock lock(&mu_);
    // Only this thread takes texts away, and those that come behind leave it where it is.
    const Text& text = streams_[stream].texts.front();
    rest = std::string_view(text.text).substr(text.written);
    fd = streams_[stream].fd;
    rest = rest.substr(0, streams_[stream].at_once);
  }
  const ssize_t n = ::write(fd, rest.data(), rest.size());
  const int why = n < 0 ? errno : 0;
  // Whoever gave us the descriptor may not wait with it himself (EAGAIN), but for a reader we do.
  if (why == EAGAIN) Clock::Real()->Sleep(kTryAgain);
  if (why == EINTR || why == EAGAIN) return;
  {
    absl::MutexLock lock(&mu_);
    std::deque<Text>& texts = streams_[stream].texts;
    Text& text = texts.front();
    const size_t done = why == 0 ? static_cast<size_t>(n) : text.text.size() - text.written;
    text.written += done;
    streams_[stream].waiting -= done;
    waiting_ -= done;
    if (text.written == text.text.size()) {
      if (stream == 0) {
        const absl::Status written = why == 0 ? absl::OkStatus() : ErrnoStatus(why, "write");
        out_failure_.Update(written);
        if (text.number == newest_out_) out_written_ = written;
      }
      texts.pop_front();
    }
  }
  changed_.NotifyAll();
}

}  // namespace lockstep::launcher
