// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/log_environment.h"
#include "common/printable.h"

namespace lockstep {
namespace {

constexpr char kVariable[] = "LOCKSTEP_LOG";

LogLevel LevelFromEnvironment() {
  const char* value = std::getenv(kVariable);
  const std::string level = value == nullptr ? "" : value;
  if (level == "debug") return LogLevel::kDebug;
  if (level == "warning") return LogLevel::kWarning;
  if (level == "error") return LogLevel::kError;
  return LogLevel::kInfo;
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

}  // namespace

void CheckLogEnvironment() {
  const char* value = std::getenv(kVariable);
  const std::string level = value == nullptr ? "info" : value;
  for (const char* known : {"", "debug", "info", "warning", "error"}) {
    if (level == known) return;
  }
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

void LogLine(LogLevel level, const std::string& message) {
  static const char kLetter[] = {'D', 'I', 'W', 'E'};
  // Made once, and not looked up for each line. ThreadSanitizer sees this, and not what Abseil
  // does.
  static const absl::TimeZone zone = absl::LocalTimeZone();
  std::string prefix;
  {
    absl::MutexLock lock(&PrefixMutex());
    if (!Prefix().empty()) prefix = absl::StrCat("[", Prefix(), "] ");
  }
  const std::string line = absl::StrCat(std::string(1, kLetter[static_cast<int>(level)]), " ",
                                        absl::FormatTime("%H:%M:%E3S", absl::Now(), zone), " ",
                                        prefix, Printable(message), "\n");
  // One write keeps lines of several threads whole; a lost log line is no reason to stop.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace lockstep
