// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/core/access.h"

namespace lockstep::coordinator {
namespace {

constexpr int kOldFiles = 4;
// Callers choose some of the texts, and a long one would push all other lines out.
constexpr size_t kMostText = 1024;
// Callers and what they did, each counted apart. Those that come when there are so many are counted
// together, by what they do.
constexpr size_t kMostRepeated = 4096;
constexpr absl::Duration kForgottenAfter = absl::Hours(24);
// Those to forget are looked for so often at most.
constexpr absl::Duration kForgetEvery = absl::Minutes(1);

std::string Clipped(absl::string_view text) {
  if (text.size() <= kMostText) return std::string(text);
  size_t end = kMostText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "... (clipped: ", text.size(), " bytes)");
}

std::string Line(const AuditEntry& entry, const std::string& outcome, absl::string_view why,
                 absl::Time now) {
  JsonObject line;
  line.Add("time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone()));
  line.Add("user", Clipped(entry.who.user()));
  line.Add("role", RoleName(entry.who.role()));
  line.Add("peer", entry.who.peer());
  line.Add("token", entry.who.token_id());
  line.Add("what", entry.what);
  line.Add("on", Clipped(entry.on));
  line.Add("detail", Clipped(entry.detail));
  line.Add("outcome", outcome);
  line.Add("why", Clipped(why));
  return line.Done();
}

}  // namespace

std::string AuditLine(const AuditEntry& entry, const absl::Status& outcome, absl::Time now) {
  return Line(entry, absl::AsciiStrToLower(absl::StatusCodeToString(outcome.code())),
              outcome.message(), now);
}

std::string AskedLine(const AuditEntry& entry, absl::Time now) {
  return Line(entry, "asked", "", now);
}

Audit::Audit(std::string file, Clock* clock, int64_t most_bytes)
    : file_(std::move(file)), clock_(clock), most_bytes_(most_bytes) {}

void Audit::Note(const AuditEntry& entry, const absl::Status& outcome) {
  if (!file_.empty()) Add(AuditLine(entry, outcome, clock_->Now()));
}

void Audit::NoteRepeated(AuditEntry entry, const absl::Status& outcome) {
  if (file_.empty()) return;
  const absl::Time now = clock_->Now();
  int64_t times = 0;
  bool shared = false;
  {
    absl::MutexLock lock(&mu_);
    times = CountAgain(entry, now, &shared);
  }
  if (!std::has_single_bit(static_cast<uint64_t>(times))) return;
  if (times > 1) entry.detail = absl::StrCat(times, " times");
  if (shared) {
    absl::StrAppend(&entry.detail, times > 1 ? ", " : "", "by callers that are not told apart");
  }
  Add(AuditLine(entry, outcome, now));
}

int64_t Audit::CountAgain(const AuditEntry& entry, absl::Time now, bool* shared) {
  const Requester& who = entry.who;
  std::string key =
      absl::StrCat(entry.what, "\n", who.token_id(), "\n", who.peer(), "\n", who.user());
  if (repeated_.size() >= kMostRepeated && !repeated_.contains(key)) {
    if (now >= forget_at_) {
      forget_at_ = now + kForgetEvery;
      std::erase_if(repeated_,
                    [&](const auto& one) { return now >= one.second.last + kForgottenAfter; });
    }
    *shared = repeated_.size() >= kMostRepeated;
    if (*shared) key = entry.what;
  }
  Repeated& repeated = repeated_[std::move(key)];
  if (now >= repeated.last + kForgottenAfter) repeated.times = 0;
  repeated.last = now;
  return ++repeated.times;
}

void Audit::NoteAsked(const AuditEntry& entry) {
  if (!file_.empty()) Add(AskedLine(entry, clock_->Now()));
}

void Audit::Add(const std::string& line) {
  absl::MutexLock lock(&mu_);
  if (absl::Status written = Write(line + "\n"); !written.ok()) {
    LS_LOG_ERROR << written.message() << "; the line: " << line;
  }
}

absl::Status Audit::Write(const std::string& line) {
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

void Audit::Rotate() {
  for (int i = kOldFiles; i > 0; --i) {
    const std::string older = absl::StrCat(file_, ".", i);
    const std::string newer = i == 1 ? file_ : absl::StrCat(file_, ".", i - 1);
    if (::rename(newer.c_str(), older.c_str()) != 0 && errno != ENOENT) {
      LS_LOG_ERROR << "cannot rename " << newer << " to " << older;
    }
  }
  fd_.reset();
}

}  // namespace lockstep::coordinator
