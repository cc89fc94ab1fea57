// SPDX-License-Identifier: Apache-2.0
// What workers print: cut into lines, kept for messages, written to the run's folder, forwarded
// within a budget. Everything here is bounded, whatever a worker prints.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_LAUNCHER_AGENT_OUTPUT_H_
#define LOCKSTEP_LAUNCHER_AGENT_OUTPUT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "common/utf8.h"

namespace lockstep::launcher {

// Returns the lines in one text, each with its "\n".
std::string Joined(std::span<const std::string> lines);

// Cuts a byte stream into lines without their ends: "\n", with any number of "\r" before it. A line
// with "\r" in it is redrawn: what follows each takes the place of what stood there before, as
// progress bars do.
class LineSplitter {
 public:
  // Longer lines are cut: those that are redrawn behind a "\r", so that a piece ends with one,
  // which no line does.
  static constexpr size_t kMaxLine = 16 << 10;
  // Appends the lines that `chunk` completes to `lines`.
  void Feed(std::string_view chunk, std::vector<std::string>* lines);
  // At the stream's end: appends the last line if it has no end.
  void Finish(std::vector<std::string>* lines);
  // Returns what was fed since the last line.
  const std::string& partial() const { return partial_; }
  // Returns whether the line that has no end yet is redrawn.
  bool redrawn() const { return was_cut_ || partial_.find('\r') != std::string::npos; }

 private:
  void End(std::vector<std::string>* lines);

  std::string partial_;
  bool was_cut_ = false;  // a piece of this line, which is redrawn, went before
};

// Returns whether a LineSplitter's `line` is a piece of one that is redrawn on and on.
inline bool IsRedrawnOn(std::string_view line) { return line.ends_with('\r'); }

// Returns what a redrawn line shows last; any other line as it is.
std::string_view LastState(std::string_view line);

// The states of a line that is redrawn, now and then one, for who would wait long for its end.
class RedrawnStates {
 public:
  static constexpr absl::Duration kEvery = absl::Seconds(5);
  // Called when there was something to read. Returns the state of the line without an end, when it
  // has been there, or the last state was returned, kEvery ago; "": nothing is to be shown.
  std::string Take(const LineSplitter& splitter, absl::Time now);

 private:
  absl::Time due_ = absl::InfiniteFuture();
};

// The newest lines of a worker, for the message about its death: of those that are redrawn, what
// they show last. Lines of stderr come first: where there are any, they hold the reason.
class LastLines {
 public:
  static constexpr size_t kLines = 20;
  static constexpr size_t kMaxLine = 500;  // longer lines are shortened
  // Takes the newest line; the oldest of its stream goes when there are more than kLines.
  void Add(bool is_stderr, const std::string& line);
  // At most kLines; those of stderr, or of stdout when stderr was silent.
  std::vector<std::string> Get() const;

 private:
  std::deque<std::string> lines_[2];
};

// One log file, appended to. A disk that fails costs the log and not the training: on a full one
// lines are left out until there is room again, and the file says how many; after another failure
// nothing is written any more.
class LogFile {
 public:
  LogFile() = default;
  ~LogFile() { SayMissing(); }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  // Appends to `fd` from here on; `path` is what messages call it.
  void Use(UniqueFd fd, std::string path);
  // -1: it has none, or not any more.
  int fd() const { return fd_.get(); }
  // Appends lines, each with its "\n". Errors: as of write(2), each that follows on success once;
  // ResourceExhausted for a full disk. `logged`, unless it is null: how many of the lines are in
  // the file; the part of the next one that was written is taken out again.
  absl::Status Append(std::string_view lines, size_t* logged = nullptr);
  // The lines that are missing so far are not: somebody has them, and will append them.
  void ForgetMissing() { missing_ = 0; }

 private:
  // Writes all of `text`. Returns an errno, or 0. Sets `written` to how many bytes are there.
  int Write(std::string_view text, size_t* written);
  // Writes how many lines are missing, if any are. Returns an errno, or 0.
  int SayMissing();
  // The last `bytes` that were written are a part of a line.
  void CutOff(size_t bytes) const;

  std::string path_;
  UniqueFd fd_;
  int64_t missing_ = 0;  // lines since the disk was full
};

// How many bytes of log lines may still be forwarded: a bucket that fills over time.
class ForwardBudget {
 public:
  ForwardBudget(int64_t capacity, int64_t bytes_per_second)
      : capacity_(capacity), rate_(bytes_per_second), left_(static_cast<double>(capacity)) {}
  // Lets the bucket fill for the time since the last call.
  void Fill(absl::Time now);
  // Takes `bytes` if they are there.
  bool Take(int64_t bytes);

 private:
  const int64_t capacity_, rate_;
  double left_;
  absl::Time filled_ = absl::InfinitePast();
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_OUTPUT_H_
