// SPDX-License-Identifier: Apache-2.0
#include "launcher/follow/renderer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/printable.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/follow/result.h"
#include "launcher/follow/text.h"
#include "proto/message_json.h"

namespace lockstep::launcher {
namespace {

constexpr absl::Duration kInPlaceEvery = absl::Milliseconds(100);
constexpr size_t kOnItsWay = 4096;  // bytes that wait where somebody reads
constexpr absl::Duration kPlainEvery = absl::Seconds(5);
constexpr absl::Duration kLate = absl::Seconds(1);  // that one message is more than the next
constexpr char kClearLine[] = "\r\x1b[K";
constexpr int kUsualColumns = 80;
constexpr int kLeastColumns = 11;
constexpr char kBold[] = "1";
constexpr char kRed[] = "1;31";
constexpr char kDim[] = "2";

int ColumnsOfStderr() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualColumns;
}

}  // namespace

RenderOptions RenderOptionsForStderr() {
  RenderOptions options;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  options.in_place = ::isatty(STDERR_FILENO) != 0 && !dumb;
  const char* no_color = std::getenv("NO_COLOR");
  options.color = options.in_place && (no_color == nullptr || no_color[0] == '\0');
  options.columns = ColumnsOfStderr;
  return options;
}

Renderer::Renderer(RenderOptions options, std::unique_ptr<TextSink> sink, Clock* clock)
    : options_(options), sink_(std::move(sink)), clock_(clock) {}

std::string Renderer::Colored(const char* code, const std::string& text) const {
  if (!options_.color) return std::string(text);
  return absl::StrCat("\x1b[", code, "m", text, "\x1b[0m");
}

void Renderer::SetTee(const std::string& tee) {
  absl::MutexLock lock(&mu_);
  tee_ = tee;
}

void Renderer::Show(const JobEvent& told) {
  // Whatever workers, hosts and users wrote: nothing of it acts on the terminal.
  const JobEvent event = Printed(told);
  if (!event.has_progress()) sink_->AwaitRoom();
  absl::MutexLock lock(&mu_);
  switch (event.event_case()) {
    case JobEvent::kState:
      ShowState(event.state());
      break;
    case JobEvent::kProgress:
      ShowProgress(event.progress());
      break;
    case JobEvent::kEval:
      Lines(true, absl::StrFormat(
                      "%s test accuracy %.2f %%, loss %.4f%s (%s %s, %s)\n",
                      Colored(kBold, absl::StrFormat("epoch %.4g, step %d:", event.eval().epoch(),
                                                     event.eval().step())),
                      100 * event.eval().accuracy(), event.eval().loss(),
                      PerplexityText(event.eval().perplexity()), WithCommas(event.eval().samples()),
                      CountedBy(event.eval()), ShortDuration(event.eval().seconds())));
      break;
    case JobEvent::kLog:
      ShowLog(event.log());
      break;
    case JobEvent::kFault:
      Lines(true, absl::StrCat(Colored(kRed, "error: "), FaultText(event.fault())));
      break;
    case JobEvent::kNotice:
      Lines(true, absl::StrCat(event.notice(), "\n"));
      break;
    case JobEvent::EVENT_NOT_SET:
      break;
  }
}

void Renderer::ShowLog(const LogLines& log) {
  if (tee_ == "none" || (tee_ == "0" && log.slot() != 0)) return;
  const std::string prefix = absl::StrCat("[", log.host(), ":", log.slot(), "] ");
  const std::string shown = log.is_stderr() ? Colored(kDim, prefix) : prefix;
  std::string text;
  for (const std::string& line : log.lines()) absl::StrAppend(&text, shown, line, "\n");
  Lines(log.is_stderr(), text);
}

void Renderer::ShowState(const JobStatus& status) {
  // Every job is pending at first; only what it goes on waiting for is worth a line.
  const bool first = state_ == JOB_STATE_UNSPECIFIED && status.state() == PENDING;
  const bool news = !first && (status.state() != state_ || status.reason() != reason_);
  state_ = status.state();
  reason_ = status.reason();
  // A job that runs as it should needs no words; its end is told by the summary.
  const bool worth_saying =
      (state_ == PENDING && options_.pending) || state_ == RECOVERING || state_ == DRAINING;
  if (!news || !worth_saying || reason_.empty()) return;
  std::string state = JobState_Name(state_);
  std::transform(state.begin(), state.end(), state.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  Lines(true, absl::StrCat(state, ": ", reason_, "\n"));
}

std::string Renderer::ProgressText(const Progress& progress) {
  std::string text;
  switch (progress.phase()) {
    case COMPILING:
      text = "compiling  ";
      break;
    case LOADING:
      text = "loading  ";
      break;
    case EVALUATING:
      text = "evaluating  ";
      break;
    case SAVING:
      text = "saving  ";
      break;
    default:
      break;
  }
  absl::StrAppendFormat(&text, "epoch %.2f/%.4g  step %s/%s", progress.epoch(),
                        progress.total_epochs(), WithCommas(progress.step()),
                        WithCommas(progress.total_steps()));
  // A worker that goes on from a checkpoint has no loss before its first step.
  if (progress.train_seconds() > 0) absl::StrAppendFormat(&text, "  loss %.4f", progress.loss());
  if (progress.samples_per_second() > 0) {
    absl::StrAppend(&text, "  ", WithCommas(std::llround(progress.samples_per_second())),
                    " samples/s");
  }
  if (steps_timed_ > 0 && progress.total_steps() > progress.step()) {
    const double left = seconds_timed_ / static_cast<double>(steps_timed_) *
                        static_cast<double>(progress.total_steps() - progress.step());
    absl::StrAppend(&text, "  ETA ", ShortDuration(left));
  }
  return text;
}

// A worker counts the seconds of its own life: they say nothing of steps before it (of a former run
// that this one goes on from), and two workers', who both tell, are not to be compared. So of two
// messages counts what can have passed between them.
void Renderer::TakePace(const Progress& progress) {
  const absl::Time now = clock_->Now();
  const int64_t steps = progress.step() - told_.step();
  const double seconds = progress.train_seconds() - told_.train_seconds();
  const bool first = told_at_ == absl::InfinitePast();
  if (!first && steps > 0 && seconds > 0 && absl::Seconds(seconds) < now - told_at_ + kLate) {
    steps_timed_ += steps;
    seconds_timed_ += seconds;
  }
  told_ = progress;
  told_at_ = now;
}

void Renderer::ShowProgress(const Progress& progress) {
  TakePace(progress);
  if (!options_.progress || progress.total_steps() <= 0 || progress.step() < step_shown_) return;
  const absl::Time now = clock_->Now();
  const int64_t epoch = static_cast<int64_t>(progress.epoch());
  const bool epoch_ended = epoch > epoch_shown_;
  const bool last = progress.step() == progress.total_steps() && step_shown_ != progress.step();
  if (options_.in_place) {
    // Where the one before is not written yet, this one would be old when it is.
    if (!last && (now - progress_shown_ < kInPlaceEvery || sink_->waiting() > kOnItsWay)) return;
    progress_line_ = ProgressText(progress);
    ShowProgressLine();
  } else {
    // The first line comes when the time is up, not with the first step.
    if (progress_shown_ == absl::InfinitePast()) progress_shown_ = now;
    if (!epoch_ended && !last && now - progress_shown_ < kPlainEvery) return;
    if (!last && sink_->waiting() > TextSink::kRoom) return;
    sink_->Err(absl::StrCat(ProgressText(progress), "\n"));
  }
  progress_shown_ = now;
  epoch_shown_ = std::max(epoch_shown_, epoch);
  step_shown_ = progress.step();
}

void Renderer::ShowProgressLine() {
  const int columns = std::max(options_.columns(), kLeastColumns);
  sink_->Err(absl::StrCat(kClearLine, progress_line_.substr(0, static_cast<size_t>(columns - 1))));
}

void Renderer::Lines(bool to_stderr, const std::string& text) {
  if (!progress_line_.empty()) sink_->Err(kClearLine);
  to_stderr ? sink_->Err(text) : sink_->Out(text);
  if (!progress_line_.empty()) ShowProgressLine();
}

void Renderer::Message(const std::string& text) {
  absl::MutexLock lock(&mu_);
  Lines(true, absl::StrCat(PrintableLines(text), "\n"));
}

void Renderer::Error(const std::string& text) {
  absl::MutexLock lock(&mu_);
  Lines(true, absl::StrCat(Colored(kRed, "error: "), PrintableLines(text), "\n"));
}

void Renderer::Plain(const std::string& text) {
  absl::MutexLock lock(&mu_);
  Lines(true, PrintableLines(text));
}

int Renderer::Finish(const std::string& text, int code) {
  sink_->AwaitRoom();
  {
    absl::MutexLock lock(&mu_);
    if (!progress_line_.empty()) sink_->Err("\n");
    progress_line_.clear();
    sink_->Out(text);
  }
  const absl::Status written = sink_->Flush();
  if (text.empty() || written.ok()) return code;
  sink_->Err(absl::StrCat(
      Colored(kRed, "error: "),
      "the job's result is not on the standard output: ", std::string(written.message()), "\n"));
  return code == kExitOk ? kExitFailure : code;
}

}  // namespace lockstep::launcher
