// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/audit_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/cond_var.h"
#include "common/fd.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep::coordinator {
namespace {

constexpr int kOldFiles = 4;

// Threads that hang in the kernel cannot be joined. They are kept where nothing ends them.
void Leave(Thread thread) {
  static auto* const mu = new absl::Mutex;
  static auto* const left = new std::vector<Thread>;
  absl::MutexLock lock(mu);
  left->push_back(std::move(thread));
}

}  // namespace

// A file that becomes FILE.1 when it is full. Thread-safety: thread-compatible.
class AuditWriter::File {
 public:
  File(std::string file, int64_t most_bytes) : file_(std::move(file)), most_bytes_(most_bytes) {}

  // With `sync` the text outlives the machine. Errors: of the file system; then nothing of the text
  // is there.
  absl::Status Write(const std::string& text, bool sync);
  const std::string& name() const { return file_; }

 private:
  int Sync();
  void Rotate();

  const std::string file_;
  const int64_t most_bytes_;
  UniqueFd fd_;
  int64_t bytes_ = 0;
};

absl::Status AuditWriter::File::Write(const std::string& text, bool sync) {
  if (fd_.valid() && bytes_ + static_cast<int64_t>(text.size()) > most_bytes_) Rotate();
  if (!fd_.valid()) {
    fd_.reset(::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    struct stat info = {};
    if (!fd_.valid() || ::fstat(fd_.get(), &info) != 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot open the audit ", file_));
    }
    bytes_ = info.st_size;
  }
  const ssize_t n = ::write(fd_.get(), text.data(), text.size());
  int why = 0;
  if (n != static_cast<ssize_t>(text.size())) {
    why = n < 0 ? errno : ENOSPC;
  } else if (sync) {
    why = Sync();
  }
  if (why == 0) {
    bytes_ += n;
    return absl::OkStatus();
  }
  // A part of a line would make the next one unreadable, and a whole one say what has not happened.
  if (n > 0 && ::ftruncate(fd_.get(), bytes_) != 0) fd_.reset();
  return ErrnoStatus(why, absl::StrCat("cannot write the audit ", file_));
}

// Returns the error's number; 0: what was written is on the disk, or goes to none, as of a pipe.
int AuditWriter::File::Sync() {
  if (::fdatasync(fd_.get()) == 0) return 0;
  const bool has_disk = errno != EINVAL && errno != EROFS && errno != ENOTSUP;
  return has_disk ? errno : 0;
}

void AuditWriter::File::Rotate() {
  for (int i = kOldFiles; i > 0; --i) {
    const std::string older = absl::StrCat(file_, ".", i);
    const std::string newer = i == 1 ? file_ : absl::StrCat(file_, ".", i - 1);
    if (::rename(newer.c_str(), older.c_str()) != 0 && errno != ENOENT) {
      LS_LOG_ERROR << "cannot rename " << newer << " to " << older;
    }
  }
  fd_.reset();
}

struct AuditWriter::Shared {
  using LostLine = std::function<std::string(int64_t)>;
  // A line that waits for the file system.
  struct Waiting {
    std::string line;
    int64_t lost_before = 0;  // lines that found no room between the one before it and it
    std::shared_ptr<std::optional<absl::Status>> done;  // what comes of it; null: nobody asks
  };

  Shared(std::string name, const Limits& with, LostLine lost_line)
      : limits(with),
        make_lost_line(std::move(lost_line)),
        file(std::move(name), with.file_bytes) {}

  void Run();
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return stopping || !waiting.empty(); }
  // Returns whether there was room for it.
  bool Add(Waiting entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Waits until the lines up to `number` are written or refused. Returns whether they are; false
  // when nothing has moved for the patience.
  bool Await(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const Limits limits;
  const LostLine make_lost_line;
  absl::Mutex mu;
  CondVar moved;
  std::deque<Waiting> waiting ABSL_GUARDED_BY(mu);  // the first one is being written
  size_t waiting_bytes ABSL_GUARDED_BY(mu) = 0;
  int64_t no_room ABSL_GUARDED_BY(mu) = 0;  // lines, since the last one that found some
  int64_t lost ABSL_GUARDED_BY(mu) = 0;     // lines, since the last one that was written
  int64_t added ABSL_GUARDED_BY(mu) = 0;
  int64_t through ABSL_GUARDED_BY(mu) = 0;  // are written or refused
  // When a line was through last, or began to wait for nothing else.
  absl::Time moved_at ABSL_GUARDED_BY(mu);
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool left ABSL_GUARDED_BY(mu) = false;  // nobody waits for the thread any more
  File file;                              // the thread's own
};

void AuditWriter::Shared::Run() {
  for (;;) {
    std::string text;
    bool sync = false;
    {
      absl::MutexLock lock(&mu);
      mu.Await(absl::Condition(this, &Shared::HasNews));
      if (left || waiting.empty()) return;
      lost += std::exchange(waiting.front().lost_before, 0);
      if (lost > 0) text = absl::StrCat(make_lost_line(lost), "\n");
      absl::StrAppend(&text, waiting.front().line, "\n");
      sync = waiting.front().done != nullptr;
    }
    const absl::Status done = file.Write(text, sync);
    absl::MutexLock lock(&mu);
    if (left) return;
    const Waiting& entry = waiting.front();
    if (!done.ok()) {
      LS_LOG_ERROR << done.message() << "; the line: " << entry.line;
    }
    lost = done.ok() ? 0 : lost + 1;
    if (entry.done != nullptr) *entry.done = done;
    waiting_bytes -= entry.line.size();
    waiting.pop_front();
    ++through;
    moved_at = Clock::Real()->Now();
    moved.NotifyAll();
  }
}

bool AuditWriter::Shared::Add(Waiting entry) {
  if (waiting_bytes + entry.line.size() > limits.waiting_bytes) {
    ++no_room;
    LS_LOG_ERROR << "the audit's file system does not answer, and too many lines wait for it; the "
                    "line: "
                 << entry.line;
    return false;
  }
  if (waiting.empty()) moved_at = Clock::Real()->Now();
  entry.lost_before = std::exchange(no_room, 0);
  waiting_bytes += entry.line.size();
  waiting.push_back(std::move(entry));
  ++added;
  return true;
}

bool AuditWriter::Shared::Await(int64_t number) {
  while (through < number) {
    const absl::Duration wait = moved_at + limits.patience - Clock::Real()->Now();
    if (wait <= absl::ZeroDuration()) return false;
    moved.WaitFor(&mu, wait);
  }
  return true;
}

AuditWriter::AuditWriter(std::string file, Limits limits,
                         std::function<std::string(int64_t lines)> lost_line)
    : shared_(std::make_shared<Shared>(std::move(file), limits, std::move(lost_line))) {
  thread_ = Thread("coord-audit", [shared = shared_] { shared->Run(); });
}

AuditWriter::~AuditWriter() {
  bool ends = false;
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->stopping = true;
    ends = shared_->Await(shared_->added);
    if (!ends) {
      shared_->left = true;
      for (const Shared::Waiting& entry : shared_->waiting) {
        LS_LOG_ERROR << "the audit " << shared_->file.name()
                     << " may lack the line: " << entry.line;
      }
    }
  }
  if (!ends) Leave(std::move(thread_));
}

void AuditWriter::Add(std::string line) {
  absl::MutexLock lock(&shared_->mu);
  shared_->Add({.line = std::move(line), .done = nullptr});
}

AuditWriter::Outcome AuditWriter::Write(std::string line) {
  absl::MutexLock lock(&shared_->mu);
  // Behind lines that do not move it would come when nobody waits for it any more.
  if (!shared_->Await(shared_->added)) return {NoAnswer()};
  const auto done = std::make_shared<std::optional<absl::Status>>();
  if (!shared_->Add({.line = std::move(line), .done = done})) {
    return {absl::UnavailableError("the audit takes no lines: its file system does not answer")};
  }
  if (!shared_->Await(shared_->added)) return {NoAnswer(), /*may_come=*/true};
  return {**done};
}

absl::Status AuditWriter::AwaitWritten() {
  absl::MutexLock lock(&shared_->mu);
  return shared_->Await(shared_->added) ? absl::OkStatus() : NoAnswer();
}

absl::Status AuditWriter::NoAnswer() const {
  return absl::UnavailableError(absl::StrCat("the file system of the audit ", shared_->file.name(),
                                             " has not answered for ",
                                             absl::FormatDuration(shared_->limits.patience)));
}

}  // namespace lockstep::coordinator
