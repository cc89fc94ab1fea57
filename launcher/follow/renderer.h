// SPDX-License-Identifier: Apache-2.0
// Shows a job's events as text: what the workers print, progress, evaluations, failures. Control
// characters in them are shown as "\x1b", so that nothing which a worker, a host or a user wrote
// acts on the terminal. On a terminal, progress is one line that is rewritten in place; elsewhere a
// plain line now and then. Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_FOLLOW_RENDERER_H_
#define LOCKSTEP_LAUNCHER_FOLLOW_RENDERER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "launcher/follow/text_sink.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

struct RenderOptions {
  bool in_place = false;  // stderr is a terminal
  bool color = false;
  // Returns the terminal's width, which may change: asked for each progress line. Does not block.
  std::function<int()> columns = [] { return 80; };
  bool progress = true;
  bool pending = true;  // what a waiting job waits for
};

// Returns what suits stderr of this process: a terminal or not, NO_COLOR, its width.
RenderOptions RenderOptionsForStderr();

class Renderer {
 public:
  // `clock` must outlive the renderer.
  Renderer(RenderOptions options, std::unique_ptr<TextSink> sink, Clock* clock);

  // Whose lines are shown: "all" (also ""), "0" (slot 0) or "none".
  void SetTee(const std::string& tee);
  // Blocks while much of what was shown before is not read yet, but for progress, which is left out
  // then.
  void Show(const JobEvent& told);
  // A message of the launcher itself, with its line end added. Does not block, as the next two.
  void Message(const std::string& text);
  void Error(const std::string& text);
  // Text with its line ends, to stderr.
  void Plain(const std::string& text);
  // Ends the progress line; `text`, the job's result, goes to stdout. Returns the exit code:
  // `code`, or kExitFailure instead of 0 when the result could not be written, which it says. (What
  // workers print goes to stdout and to their log files, so that only a lost result counts.) Blocks
  // until all is written; after Hurry only while somebody reads.
  int Finish(const std::string& text, int code);
  // Nobody waits any more for one who does not read.
  void Hurry() { sink_->Hurry(); }

 private:
  void ShowLog(const LogLines& log) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ShowState(const JobStatus& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ShowProgress(const Progress& progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Learns from what is new how long a step takes.
  void TakePace(const Progress& progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string ProgressText(const Progress& progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Shows as much of the progress line as the terminal has room for on one of its lines.
  void ShowProgressLine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes lines around the progress line.
  void Lines(bool to_stderr, const std::string& text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string Colored(const char* code, const std::string& text) const;

  const RenderOptions options_;
  const std::unique_ptr<TextSink> sink_;
  Clock* const clock_;
  absl::Mutex mu_;
  std::string progress_line_ ABSL_GUARDED_BY(mu_);  // which is the terminal's last; uncut
  absl::Time progress_shown_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  Progress told_ ABSL_GUARDED_BY(mu_);  // last
  absl::Time told_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int64_t steps_timed_ ABSL_GUARDED_BY(mu_) = 0;  // and how long they took
  double seconds_timed_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t epoch_shown_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t step_shown_ ABSL_GUARDED_BY(mu_) = -1;
  std::string tee_ ABSL_GUARDED_BY(mu_);
  JobState state_ ABSL_GUARDED_BY(mu_) = JOB_STATE_UNSPECIFIED;
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_FOLLOW_RENDERER_H_
