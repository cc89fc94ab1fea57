// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/civil_time.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/log_dates.h"
#include "common/log_environment.h"
#include "common/printable.h"

namespace lockstep {
namespace {

constexpr char kVariable[] = "LOCKSTEP_LOG";

LogLevel LevelFromEnvironment() {
  const char* value = std::getenv(kVariable);
  return LogLevelOf(value == nullptr ? "" : value).value_or(LogLevel::kInfo);
}

std::atomic<LogLevel>& Level() {
  static std::atomic<LogLevel> level{LevelFromEnvironment()};
  return level;
}

absl::Mutex& PrefixMutex() {
  static absl::Mutex* const mutex = new absl::Mutex;
  return *mutex;
}

std::string& Prefix() {
  static std::string* const prefix = new std::string;
  return *prefix;
}

// Guarded by PrefixMutex. Without a value: lines have no dates.
std::optional<LogCalendar>& Calendar() {
  static auto* const calendar = new std::optional<LogCalendar>;
  return *calendar;
}

// Made once, and not looked up for each line. ThreadSanitizer sees this, and not what Abseil does.
absl::TimeZone Zone() {
  static const absl::TimeZone zone = absl::LocalTimeZone();
  return zone;
}

// So long of each second threads wait, all together, for who reads slowly.
constexpr absl::Duration kPatience = absl::Milliseconds(100);
constexpr absl::Duration kPatienceFor = absl::Seconds(1);
// A terminal with room for one byte takes no end of a line, which is two there.
constexpr int kTryAgainMillis = 5;

// Writes to stderr as long as that does not block for more than the patience.
class LineWriter {
 public:
  void Write(std::string_view line) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Writes what there is room for. Returns how much is through, or cannot be written at all.
  size_t WriteSome(int fd, std::string_view text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits, in poll(2) for `events` of `fd`, within the patience. Returns whether they came.
  bool Await(int fd, int16_t events, int most_millis) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  absl::Time second_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Duration left_ ABSL_GUARDED_BY(mu_);
  int64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;  // lines of which nobody was told
  bool torn_ ABSL_GUARDED_BY(mu_) = false;     // the last line has no end
};

bool LineWriter::Await(int fd, int16_t events, int most_millis) {
  const absl::Time begun = Clock::Real()->Now();
  if (begun - second_ >= kPatienceFor) {
    second_ = begun;
    left_ = kPatience;
  }
  const int millis = std::min<int>(most_millis, static_cast<int>(absl::ToInt64Milliseconds(left_)));
  pollfd room{fd, events, 0};
  const int ready = ::poll(&room, 1, millis);
  left_ = std::max(absl::ZeroDuration(), left_ - (Clock::Real()->Now() - begun));
  return ready > 0;
}

size_t LineWriter::WriteSome(int fd, std::string_view text) {
  size_t done = 0;
  while (done < text.size() && Await(fd, POLLOUT, INT_MAX)) {
    // A pipe takes so much without blocking once poll(2) has said that there is room.
    const std::string_view piece = text.substr(done, PIPE_BUF);
    const ssize_t n = ::write(fd, piece.data(), piece.size());
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      Await(-1, 0, kTryAgainMillis);
      if (left_ < absl::Milliseconds(1)) break;
    } else if (errno != EINTR) {
      return text.size();
    }
  }
  return done;
}

void LineWriter::Write(std::string_view line) {
  absl::MutexLock lock(&mu_);
  struct stat place {};
  const bool known = ::fstat(STDERR_FILENO, &place) == 0;
  // One write keeps lines of several processes whole; a lost log line is no reason to stop.
  if (!known || !(S_ISFIFO(place.st_mode) || S_ISSOCK(place.st_mode) || S_ISCHR(place.st_mode))) {
    (void)!::write(STDERR_FILENO, line.data(), line.size());
    return;
  }
  // Opened once more it does not block, and who shares stderr is none the wiser. Where that may not
  // be, as after su(1), poll(2) alone says what there is room for.
  const UniqueFd own(::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  const int fd = own.valid() ? own.get() : STDERR_FILENO;
  std::string text = torn_ ? "\n" : "";
  if (left_out_ > 0) {
    absl::StrAppend(&text, "[", left_out_, left_out_ == 1 ? " log line is" : " log lines are",
                    " missing here: nobody read them]\n");
  }
  const size_t told = text.size();
  text += line;
  const size_t done = WriteSome(fd, text);
  if (done > 0) torn_ = done < text.size() && text[done - 1] != '\n';
  if (done >= told && done > 0) left_out_ = 0;
  if (done < text.size()) ++left_out_;
}

void WriteLine(std::string_view line) {
  static LineWriter* const writer = new LineWriter;
  writer->Write(line);
}

}  // namespace

std::optional<LogLevel> LogLevelOf(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return std::nullopt;
}

void CheckLogEnvironment() {
  const char* value = std::getenv(kVariable);
  const std::string level = value == nullptr ? "" : value;
  if (level.empty() || LogLevelOf(level).has_value()) return;
  ::setenv(kVariable, "info", 1);
  LS_LOG_WARNING << kVariable << " is '" << Printable(level)
                 << "', which is none of debug, info, warning, error: info it is";
}

void SetLogLevel(LogLevel level) { Level() = level; }
LogLevel GetLogLevel() { return Level(); }

void SetLogPrefix(const std::string& prefix) {
  absl::MutexLock lock(&PrefixMutex());
  Prefix() = prefix;
}

void LogDates() {
  absl::MutexLock lock(&PrefixMutex());
  Calendar().emplace(Zone());
}

std::string LogCalendar::Before(absl::Time now) {
  const absl::CivilDay day = absl::ToCivilDay(now, zone_);
  if (std::exchange(day_, day) == day) return "";
  return absl::FormatTime("%A, %Y-%m-%d, UTC%Ez", now, zone_);
}

void LogLine(LogLevel level, const std::string& message) {
  static const char kLetter[] = {'D', 'I', 'W', 'E'};
  absl::Time now;
  std::string prefix, date;
  {
    absl::MutexLock lock(&PrefixMutex());
    now = absl::Now();  // so that no thread brings the day before back
    if (!Prefix().empty()) prefix = absl::StrCat("[", Prefix(), "] ");
    if (Calendar().has_value()) date = Calendar()->Before(now);
  }
  const std::string time = absl::FormatTime("%H:%M:%E3S", now, Zone());
  if (!date.empty()) date = absl::StrCat("I ", time, " ", date, "\n");
  WriteLine(absl::StrCat(date, std::string(1, kLetter[static_cast<int>(level)]), " ", time, " ",
                         prefix, Printable(message), "\n"));
}

}  // namespace lockstep
