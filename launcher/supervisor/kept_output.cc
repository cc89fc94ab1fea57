// SPDX-License-Identifier: Apache-2.0
#include "launcher/supervisor/kept_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kReadAtOnce = 256 << 10;
// What goes to the log in one call: an agent that comes meanwhile gets all but this to write.
constexpr size_t kWriteAtOnce = 64 << 10;
// What a line takes that waits, beside its text (bytes).
constexpr size_t kOfLine = 64;

}  // namespace

// The lines, and where they go. Thread-safe.
class KeptOutput::Log : public std::enable_shared_from_this<KeptOutput::Log> {
 public:
  Log(UniqueFd fd, RunDisk* disk, std::function<void()> on_room)
      : fd_(std::move(fd)), disk_(disk), on_room_(std::move(on_room)) {
    absl::MutexLock lock(&mu_);
    Use();
  }
  int fd() const { return fd_.get(); }
  bool has_room() const {
    absl::MutexLock lock(&mu_);
    return waiting_bytes_ <= kRoom;
  }
  // `told`: an agent has told who follows the job.
  void Take(int stream, const std::vector<std::string>& lines, bool told);
  void HandOver(KeptProcess* kept);
  void TakeBack(const KeptProcess& kept);

 private:
  struct Line {
    int stream;
    std::string text;
    bool told;
  };
  struct Told {
    Line line;
    bool logged;
  };
  void Use() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has what waits written, if nobody is about to.
  void Schedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // On the disk's thread.
  void WriteSome();
  void Keep(Line line, bool logged) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Keeps no more than kBytes.
  void Trim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UniqueFd fd_;
  RunDisk* const disk_;
  const std::function<void()> on_room_;
  mutable absl::Mutex mu_;
  // On fd_, until it fails: the disk's thread has it while it works, and nobody after that.
  LogFile file_;
  bool works_ ABSL_GUARDED_BY(mu_) = false;
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Line> waiting_ ABSL_GUARDED_BY(mu_);     // for the log, in their order
  std::vector<Line> under_way_ ABSL_GUARDED_BY(mu_);  // being written, before those
  bool handed_over_ ABSL_GUARDED_BY(mu_) = false;     // what is under way: an agent has it
  size_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;     // of both
  std::deque<Told> told_ ABSL_GUARDED_BY(mu_);        // before all of these; kBytes of them
  size_t told_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t lost_ ABSL_GUARDED_BY(mu_) = 0;  // lines that are neither in the log nor here
};

void KeptOutput::Log::Use() {
  file_.Use(UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)), "a worker's log");
  works_ = file_.fd() >= 0;
}

void KeptOutput::Log::Take(int stream, const std::vector<std::string>& lines, bool told) {
  absl::MutexLock lock(&mu_);
  for (const std::string& text : lines) {
    // Without a log the job goes on, and the lines wait for an agent that can write them.
    if (!works_) {
      Keep({stream, text, told}, /*logged=*/false);
      continue;
    }
    waiting_bytes_ += text.size() + kOfLine;
    waiting_.push_back({stream, text, told});
  }
  Schedule();
}

void KeptOutput::Log::Schedule() {
  if (waiting_.empty() || std::exchange(scheduled_, true)) return;
  disk_->Do([log = shared_from_this()] { log->WriteSome(); });
}

void KeptOutput::Log::WriteSome() {
  std::vector<std::string> texts;
  {
    absl::MutexLock lock(&mu_);
    for (size_t bytes = 0; !waiting_.empty() && bytes < kWriteAtOnce; waiting_.pop_front()) {
      bytes += waiting_.front().text.size() + 1;
      texts.push_back(waiting_.front().text);
      under_way_.push_back(std::move(waiting_.front()));
    }
  }
  size_t logged = 0;
  const bool written = texts.empty() || file_.Append(Joined(texts), &logged).ok();
  file_.ForgetMissing();  // they are kept here
  {
    absl::MutexLock lock(&mu_);
    const bool handed_over = std::exchange(handed_over_, false);
    for (size_t i = 0; i < under_way_.size(); ++i) {
      waiting_bytes_ -= under_way_[i].text.size() + kOfLine;
      if (handed_over) {
        lost_ += i < logged ? 0 : 1;
      } else {
        Keep(std::move(under_way_[i]), i < logged);
      }
    }
    under_way_.clear();
    scheduled_ = false;
    works_ = works_ && written;
    if (handed_over && !works_) Use();  // as in HandOver
    for (; !works_ && !waiting_.empty(); waiting_.pop_front()) {
      waiting_bytes_ -= waiting_.front().text.size() + kOfLine;
      Keep(std::move(waiting_.front()), /*logged=*/false);
    }
    Schedule();
  }
  if (on_room_ != nullptr) on_room_();
}

void KeptOutput::Log::Keep(Line line, bool logged) {
  told_bytes_ += line.text.size() + 1;
  told_.push_back({std::move(line), logged});
  Trim();
}

void KeptOutput::Log::Trim() {
  while (told_bytes_ > kBytes) {
    told_bytes_ -= told_.front().line.text.size() + 1;
    if (!told_.front().logged) ++lost_;
    told_.pop_front();
  }
}

void KeptOutput::Log::HandOver(KeptProcess* kept) {
  const auto add = [kept](const Line& printed, bool logged) {
    PrintedLine* const line = kept->add_lines();
    line->set_is_stderr(printed.stream == 1);
    line->set_text(printed.text);
    line->set_unlogged(!logged);
    line->set_told(printed.told);
  };
  absl::MutexLock lock(&mu_);
  for (const Told& told : told_) add(told.line, told.logged);
  // What is under way comes to the log before anything of the agent's, or is lost.
  if (!handed_over_) {
    for (const Line& line : under_way_) add(line, /*logged=*/true);
  }
  handed_over_ = !under_way_.empty();
  for (const Line& line : waiting_) {
    waiting_bytes_ -= line.text.size() + kOfLine;
    add(line, /*logged=*/false);
  }
  kept->set_lost_lines(lost_);
  waiting_.clear();
  told_.clear();
  told_bytes_ = 0;
  lost_ = 0;
  // It may work again when this agent is gone, too.
  if (!works_) Use();
}

void KeptOutput::Log::TakeBack(const KeptProcess& kept) {
  absl::MutexLock lock(&mu_);
  lost_ += kept.lost_lines();
  for (int i = kept.lines_size(); i-- > 0;) {
    const PrintedLine& printed = kept.lines(i);
    Line line{printed.is_stderr() ? 1 : 0, printed.text(), printed.told()};
    if (printed.unlogged() && works_) {
      waiting_bytes_ += line.text.size() + kOfLine;
      waiting_.push_front(std::move(line));
    } else {
      told_bytes_ += line.text.size() + 1;
      told_.push_front({std::move(line), !printed.unlogged()});
    }
  }
  Trim();
  Schedule();
}

KeptOutput::KeptOutput(UniqueFd out, UniqueFd err, UniqueFd log, RunDisk* disk,
                       std::function<void()> on_room)
    : disk_(disk), log_(std::make_shared<Log>(std::move(log), disk, std::move(on_room))) {
  streams_[0].fd = std::move(out);
  streams_[1].fd = std::move(err);
}

// Also a close may wait for the disk.
KeptOutput::~KeptOutput() {
  disk_->Do([log = std::move(log_)] {});
}

int KeptOutput::log() const { return log_->fd(); }

bool KeptOutput::has_room() const { return log_->has_room(); }

void KeptOutput::TakeUnlogged(int stream, std::string_view lines) {
  std::vector<std::string> split;
  for (size_t end; !lines.empty(); lines.remove_prefix(std::min(end + 1, lines.size()))) {
    end = std::min(lines.find('\n'), lines.size());
    split.emplace_back(lines.substr(0, end));
  }
  log_->Take(stream, split, /*told=*/true);
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
  if (!lines.empty()) log_->Take(stream, lines, /*told=*/false);
}

void KeptOutput::HandOver(KeptProcess* kept) {
  log_->HandOver(kept);
  for (Stream& stream : streams_) {
    kept->add_partial(stream.splitter.partial());
    stream.splitter = LineSplitter();
  }
}

void KeptOutput::TakeBack(const KeptProcess& kept) {
  log_->TakeBack(kept);
  for (int stream = 0; stream < 2 && stream < kept.partial_size(); ++stream) {
    Begin(stream, kept.partial(stream));
  }
}

}  // namespace lockstep::launcher
