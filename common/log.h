// SPDX-License-Identifier: Apache-2.0
// Log lines on stderr: "I 14:03:07.123 [r3 g2] message". State changes are logged once and with
// their reason; metrics are separate (metrics.jsonl). What is logged may come from others: control
// characters are written as Printable does.
// A terminal, pipe or socket that nobody reads keeps nobody: lines that it has no room for are left
// out, after some waiting (100 ms of a second, all threads together), and the next line that goes
// says how many. Thread-safety: thread-safe; a line is written with one write(2), as far as it
// fits.
#ifndef LOCKSTEP_COMMON_LOG_H_
#define LOCKSTEP_COMMON_LOG_H_

#include <sstream>
#include <string>

namespace lockstep {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// Lines below `level` are dropped. Default kInfo, or LOCKSTEP_LOG=debug|info|warning|error.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

// Text shown in brackets in every line of this process, such as "r3 g2"; empty: none.
void SetLogPrefix(const std::string& prefix);

// Writes one line to stderr: level, prefix and message. The LS_LOG_ macros call it.
void LogLine(LogLevel level, const std::string& message);

namespace log_internal {
class Line {
 public:
  explicit Line(LogLevel level) : level_(level) {}
  ~Line() { LogLine(level_, stream_.str()); }
  std::ostream& stream() { return stream_; }

 private:
  LogLevel level_;
  std::ostringstream stream_;
};
}  // namespace log_internal
}  // namespace lockstep

#define LS_LOG_AT_(level)                    \
  if (::lockstep::GetLogLevel() > (level)) { \
  } else                                     \
    ::lockstep::log_internal::Line(level).stream()
#define LS_LOG_DEBUG LS_LOG_AT_(::lockstep::LogLevel::kDebug)
#define LS_LOG_INFO LS_LOG_AT_(::lockstep::LogLevel::kInfo)
#define LS_LOG_WARNING LS_LOG_AT_(::lockstep::LogLevel::kWarning)
#define LS_LOG_ERROR LS_LOG_AT_(::lockstep::LogLevel::kError)

#endif  // LOCKSTEP_COMMON_LOG_H_
