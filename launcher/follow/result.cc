// SPDX-License-Identifier: Apache-2.0
#include "launcher/follow/result.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/json.h"
#include "launcher/follow/text.h"
#include "proto/message_json.h"

namespace lockstep::launcher {
namespace {

std::string AverageJson(const EvalResult& average) {
  return JsonObject()
      .Add("loss", average.loss())
      .Add("accuracy", average.accuracy())
      .Add("top5_accuracy", average.top5_accuracy())
      .Done();
}

std::string EvalJson(const EvalResult& eval) {
  JsonObject object;
  object.Add("loss", eval.loss())
      .Add("accuracy", eval.accuracy())
      .Add("top5_accuracy", eval.top5_accuracy());
  if (eval.perplexity() > 0) object.Add("perplexity", eval.perplexity());
  return object.Add("samples", eval.samples())
      .Add("targets", eval.targets())
      .Add("step", eval.step())
      .Add("epoch", eval.epoch())
      .Add("seconds", eval.seconds())
      .Raw("ema", eval.has_ema() ? AverageJson(eval.ema()) : "null")
      .Done();
}

// "88.40 % (top-5 99.50 %)"; of five classes or fewer the five likeliest are all there are.
std::string AccuracyText(const EvalResult& eval, int64_t classes) {
  std::string text = absl::StrFormat("%.2f %%", 100 * eval.accuracy());
  if (classes > 0 && classes <= 5) return text;
  absl::StrAppendFormat(&text, " (top-5 %.2f %%)", 100 * eval.top5_accuracy());
  return text;
}

std::string FaultJson(const Fault& fault) {
  return JsonObject()
      .Add("number", fault.number())
      .Add("rank", fault.rank())
      .Add("host", fault.host())
      .Add("pid", fault.pid())
      .Add("cause", fault.cause())
      .Add("exit_code", fault.exit_code())
      .Add("signal", fault.signal())
      .Raw("victims", JsonArrayOf(fault.victims()))
      .Add("generation", fault.generation())
      .Add("detect_ms", fault.detect_ms())
      .Add("rendezvous_ms", fault.rendezvous_ms())
      .Add("restore_ms", fault.restore_ms())
      .Add("to_next_step_ms", fault.to_next_step_ms())
      .Add("replay_ms", fault.replay_ms())
      .Add("steps_lost", fault.steps_lost())
      .Raw("last_lines", JsonArrayOf(fault.last_lines()))
      .Done();
}

std::string ModelJson(const JobResult& result) {
  if (result.model_path().empty()) return "null";
  return JsonObject().Add("path", result.model_path()).Add("sha256", result.model_sha256()).Done();
}

std::string StateWord(JobState state) {
  switch (state) {
    case SUCCEEDED:
      return "succeeded";
    case FAILED:
      return "FAILED";
    case CANCELLED:
      return "cancelled";
    default:
      return JobState_Name(state);
  }
}

}  // namespace

std::string ResultJson(const JobStatus& status) {
  const JobResult& result = status.result();
  return JsonObject()
             .Add("schema", 1)
             .Add("job", status.job_id())
             .Add("name", status.name())
             .Add("state", JobState_Name(status.state()))
             .Add("reason", status.reason())
             .Add("exit_code", ExitCodeOfJob(status))
             .Add("workers", result.workers())
             .Add("steps", result.steps())
             .Add("epochs", result.epochs())
             .Add("wall_seconds", result.wall_seconds())
             .Add("train_seconds", result.train_seconds())
             .Add("samples_per_second", result.samples_per_second())
             .Raw("eval", result.has_eval() ? EvalJson(result.eval()) : "null")
             .Add("generations", result.generations())
             .Add("restarts", status.restarts())
             .Raw("faults", JsonArrayOf(result.faults(), FaultJson))
             .Raw("peak_rss_bytes", JsonArrayOf(result.peak_rss_bytes()))
             .Raw("model", ModelJson(result))
             .Add("run_dir", status.run_dir())
             .Done() +
         "\n";
}

std::string ResultSummary(const JobStatus& told, const std::string& logs) {
  const JobStatus status = Printed(told);
  const JobResult& result = status.result();
  std::string text =
      absl::StrCat(status.name(), " (", status.job_id(), ") ", StateWord(status.state()));
  if (status.state() != SUCCEEDED && !status.reason().empty()) {
    absl::StrAppend(&text, ": ", status.reason());
  }
  absl::StrAppend(&text, "\n");
  const auto line = [&text](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "  %-10s %s\n", name, value);
  };
  if (result.has_eval()) {
    const EvalResult& eval = result.eval();
    line("accuracy",
         absl::StrFormat("%s of %s test %s, loss %.4f%s", AccuracyText(eval, eval.classes()),
                         WithCommas(eval.samples()), CountedBy(eval), eval.loss(),
                         PerplexityText(eval.perplexity())));
    if (eval.has_ema()) {
      line("average", absl::StrFormat("%s, loss %.4f", AccuracyText(eval.ema(), eval.classes()),
                                      eval.ema().loss()));
    }
  }
  if (result.steps() > 0) {
    line("trained", absl::StrFormat("%s steps, %.4g epochs, %d %s", WithCommas(result.steps()),
                                    result.epochs(), result.workers(),
                                    result.workers() == 1 ? "worker" : "workers"));
  }
  std::string time = ShortDuration(result.wall_seconds());
  if (result.train_seconds() > 0) {
    absl::StrAppend(&time, ", ", ShortDuration(result.train_seconds()), " of them training");
  }
  line("time", time);
  if (result.samples_per_second() > 0) {
    line("speed",
         absl::StrCat(WithCommas(static_cast<int64_t>(result.samples_per_second())), " samples/s"));
  }
  if (result.peak_rss_bytes_size() > 0) {
    std::vector<std::string> peaks;
    for (const int64_t bytes : result.peak_rss_bytes()) peaks.push_back(ShortBytes(bytes));
    line("memory", absl::StrCat("peak by rank: ", absl::StrJoin(peaks, ", ")));
  }
  if (!result.model_path().empty()) line("model", result.model_path());
  if (!result.model_sha256().empty()) line("sha256", result.model_sha256());
  if (!status.run_dir().empty()) {
    line("logs", logs.empty() ? absl::StrCat(status.run_dir(), "/logs") : logs);
  }
  return text;
}

// Only where a sample has several targets is there a perplexity, which without any target is NaN.
std::string CountedBy(const EvalResult& eval) {
  return eval.perplexity() == 0 ? "samples" : "targets";
}

std::string FaultText(const Fault& told) {
  const Fault fault = Printed(told);
  std::string text = absl::StrCat("rank ", fault.rank(), " failed first: ", fault.cause());
  std::vector<std::string> where;
  if (!fault.host().empty()) where.push_back(absl::StrCat("host ", fault.host()));
  if (fault.pid() != 0) where.push_back(absl::StrCat("pid ", fault.pid()));
  if (!where.empty()) absl::StrAppend(&text, " (", absl::StrJoin(where, ", "), ")");
  absl::StrAppend(&text, "\n");
  if (fault.last_lines_size() > 0) {
    absl::StrAppend(&text, "  its last lines:\n");
    for (const std::string& line : fault.last_lines()) absl::StrAppend(&text, "  | ", line, "\n");
  }
  if (fault.victims_size() > 0) {
    absl::StrAppend(&text, "  its victims, which only lost their peer: ",
                    fault.victims_size() == 1 ? "rank " : "ranks ",
                    absl::StrJoin(fault.victims(), ", "), "\n");
  }
  return text;
}

int ExitCodeOfJob(const JobStatus& status) {
  if (status.result().exit_code() != 0) return status.result().exit_code();
  switch (status.state()) {
    case SUCCEEDED:
      return 0;
    case CANCELLED:
      return 130;
    default:
      return 1;
  }
}

}  // namespace lockstep::launcher
