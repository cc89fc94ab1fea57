// SPDX-License-Identifier: Apache-2.0
#include "launcher/follow/result.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "launcher/follow/text.h"

namespace lockstep::launcher {
namespace {

// The members of one object, in the order of their calls.
class JsonObject {
 public:
  JsonObject& Raw(const std::string& name, const std::string& json) {
    absl::StrAppend(&text_, text_.size() > 1 ? "," : "", JsonString(name), ":", json);
    return *this;
  }
  JsonObject& Text(const std::string& name, const std::string& value) {
    return Raw(name, JsonString(value));
  }
  JsonObject& Int(const std::string& name, int64_t value) { return Raw(name, absl::StrCat(value)); }
  JsonObject& Real(const std::string& name, double value) { return Raw(name, JsonNumber(value)); }
  std::string Done() { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

template <typename List, typename Function>
std::string JsonArray(const List& list, Function to_json) {
  std::vector<std::string> items;
  for (const auto& item : list) items.push_back(to_json(item));
  return absl::StrCat("[", absl::StrJoin(items, ","), "]");
}

std::string IntJson(int64_t value) { return absl::StrCat(value); }

std::string AverageJson(const EvalResult& average) {
  return JsonObject()
      .Real("loss", average.loss())
      .Real("accuracy", average.accuracy())
      .Real("top5_accuracy", average.top5_accuracy())
      .Done();
}

std::string EvalJson(const EvalResult& eval) {
  JsonObject object;
  object.Real("loss", eval.loss())
      .Real("accuracy", eval.accuracy())
      .Real("top5_accuracy", eval.top5_accuracy());
  if (eval.perplexity() > 0) object.Real("perplexity", eval.perplexity());
  return object.Int("samples", eval.samples())
      .Int("step", eval.step())
      .Real("epoch", eval.epoch())
      .Real("seconds", eval.seconds())
      .Raw("ema", eval.has_ema() ? AverageJson(eval.ema()) : "null")
      .Done();
}

std::string FaultJson(const Fault& fault) {
  return JsonObject()
      .Int("rank", fault.rank())
      .Text("host", fault.host())
      .Int("pid", fault.pid())
      .Text("cause", fault.cause())
      .Int("exit_code", fault.exit_code())
      .Int("signal", fault.signal())
      .Raw("victims", JsonArray(fault.victims(), IntJson))
      .Int("generation", fault.generation())
      .Real("detect_ms", fault.detect_ms())
      .Real("to_next_step_ms", fault.to_next_step_ms())
      .Int("steps_lost", fault.steps_lost())
      .Raw("last_lines", JsonArray(fault.last_lines(), JsonString))
      .Done();
}

std::string ModelJson(const JobResult& result) {
  if (result.model_path().empty()) return "null";
  return JsonObject()
      .Text("path", result.model_path())
      .Text("sha256", result.model_sha256())
      .Done();
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
             .Int("schema", 1)
             .Text("job", status.job_id())
             .Text("name", status.name())
             .Text("state", JobState_Name(status.state()))
             .Text("reason", status.reason())
             .Int("exit_code", ExitCodeOfJob(status))
             .Int("workers", result.workers())
             .Int("steps", result.steps())
             .Real("epochs", result.epochs())
             .Real("wall_seconds", result.wall_seconds())
             .Real("train_seconds", result.train_seconds())
             .Real("samples_per_second", result.samples_per_second())
             .Raw("eval", result.has_eval() ? EvalJson(result.eval()) : "null")
             .Int("generations", result.generations())
             .Int("restarts", status.restarts())
             .Raw("faults", JsonArray(result.faults(), FaultJson))
             .Raw("peak_rss_bytes", JsonArray(result.peak_rss_bytes(), IntJson))
             .Raw("model", ModelJson(result))
             .Text("run_dir", status.run_dir())
             .Done() +
         "\n";
}

std::string ResultSummary(const JobStatus& status) {
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
    line("accuracy", absl::StrFormat("%.2f %% (top-5 %.2f %%) of %s test samples, loss %.4f%s",
                                     100 * eval.accuracy(), 100 * eval.top5_accuracy(),
                                     WithCommas(eval.samples()), eval.loss(),
                                     PerplexityText(eval.perplexity())));
    if (eval.has_ema()) {
      line("average",
           absl::StrFormat("%.2f %% (top-5 %.2f %%), loss %.4f", 100 * eval.ema().accuracy(),
                           100 * eval.ema().top5_accuracy(), eval.ema().loss()));
    }
  }
  if (result.steps() > 0) {
    line("trained", absl::StrFormat("%s steps, %.4g epochs, %d workers", WithCommas(result.steps()),
                                    result.epochs(), result.workers()));
  }
  line("time", absl::StrFormat("%s, %s of them training", ShortDuration(result.wall_seconds()),
                               ShortDuration(result.train_seconds())));
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
  if (!status.run_dir().empty()) line("logs", absl::StrCat(status.run_dir(), "/logs"));
  return text;
}

std::string FaultText(const Fault& fault) {
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
