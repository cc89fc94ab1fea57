// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/audit_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <deque>
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

  // Errors: of the file system; then nothing of the line is there.
  absl::Status Write(const std::string& line);
  const std::string& name() const { return file_; }

 private:
  void Rotate();

  const std::string file_;
  const int64_t most_bytes_;
  UniqueFd fd_;
  int64_t bytes_ = 0;
};

absl::Status AuditWriter::File::Write(const std::string& line) {
  if (fd_.valid() && bytes_ + static_cast<int64_t>(line.size()) > most_bytes_) Rotate();
  if (!fd_.valid()) {
    fd_.reset(::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    struct stat info = {};
    if (!fd_.valid() || ::fstat(fd_.get(), &info) != 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot open the audit ", file_));
    }
    bytes_ = info.st_size;
  }
  const ssize_t n = ::write(fd_.get(), line.data(), line.size());
  if (n == static_cast<ssize_t>(line.size())) {
    bytes_ += n;
    return absl::OkStatus();
  }
  const int why = n < 0 ? errno : ENOSPC;
  // A part of a line would make the next one unreadable.
  if (n > 0 && ::ftruncate(fd_.get(), bytes_) != 0) fd_.reset();
  return ErrnoStatus(why, absl::StrCat("cannot write the audit ", file_));
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
  Shared(std::string name, int64_t most_bytes) : file(std::move(name), most_bytes) {}

  void Run();
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return stopping || !waiting.empty(); }
  // Waits until the lines up to `number` are written. Returns whether they are; false when nothing
  // has moved for `patience`.
  bool Await(int64_t number, absl::Duration patience) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  absl::Mutex mu;
  CondVar moved;
  std::deque<std::string> waiting ABSL_GUARDED_BY(mu);  // the first one is being written
  size_t waiting_bytes ABSL_GUARDED_BY(mu) = 0;
  int64_t added ABSL_GUARDED_BY(mu) = 0;
  int64_t written ABSL_GUARDED_BY(mu) = 0;
  // When a line was written last, or began to wait for nothing else.
  absl::Time moved_at ABSL_GUARDED_BY(mu);
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool left ABSL_GUARDED_BY(mu) = false;  // nobody waits for the thread any more
  File file;                              // the thread's own
};

void AuditWriter::Shared::Run() {
  for (;;) {
    std::string line;
    {
      absl::MutexLock lock(&mu);
      mu.Await(absl::Condition(this, &Shared::HasNews));
      if (left || waiting.empty()) return;
      line = waiting.front();
    }
    const absl::Status done = file.Write(line + "\n");
    absl::MutexLock lock(&mu);
    if (left) return;
    if (!done.ok()) {
      LS_LOG_ERROR << done.message() << "; the line: " << line;
    }
    waiting.pop_front();
    waiting_bytes -= line.size();
    ++written;
    moved_at = Clock::Real()->Now();
    moved.NotifyAll();
  }
}

bool AuditWriter::Shared::Await(int64_t number, absl::Duration patience) {
  while (written < number) {
    const absl::Duration wait = moved_at + patience - Clock::Real()->Now();
    if (wait <= absl::ZeroDuration()) return false;
    moved.WaitFor(&mu, wait);
  }
  return true;
}

AuditWriter::AuditWriter(std::string file, Limits limits)
    : limits_(limits), shared_(std::make_shared<Shared>(std::move(file), limits.file_bytes)) {
  thread_ = Thread("coord-audit", [shared = shared_] { shared->Run(); });
}

AuditWriter::~AuditWriter() {
  bool ends = false;
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->stopping = true;
    ends = shared_->Await(shared_->added, limits_.patience);
    if (!ends) {
      shared_->left = true;
      for (const std::string& line : shared_->waiting) {
        LS_LOG_ERROR << "the audit " << shared_->file.name() << " may lack the line: " << line;
      }
    }
  }
  if (!ends) Leave(std::move(thread_));
}

bool AuditWriter::Add(std::string line) {
  absl::MutexLock lock(&shared_->mu);
  if (shared_->waiting_bytes + line.size() > limits_.waiting_bytes) return false;
  if (shared_->waiting.empty()) shared_->moved_at = Clock::Real()->Now();
  shared_->waiting_bytes += line.size();
  shared_->waiting.push_back(std::move(line));
  ++shared_->added;
  return true;
}

absl::Status AuditWriter::AwaitWritten() {
  absl::MutexLock lock(&shared_->mu);
  if (shared_->Await(shared_->added, limits_.patience)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the file system of the audit ", shared_->file.name(),
                                             " has not answered for ",
                                             absl::FormatDuration(limits_.patience)));
}

}  // namespace lockstep::coordinator
