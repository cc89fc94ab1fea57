// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/validate.h"

#include <string>
#include <utility>
#include <vector>

#include "common/json.h"
#include "common/printable.h"
#include "job/job_file.h"
#include "job/meaning/schedule.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/local_run/hosts_plan.h"

namespace lockstep::launcher {
namespace {

std::string ErrorJson(const job::Diagnostic& error) {
  return JsonObject()
      .Add("file", error.file)
      .Add("line", error.line)
      .Add("column", error.column)
      .Add("width", error.width)
      .Add("message", error.message)
      .Done();
}

std::string ErrorsJson(const std::vector<job::Diagnostic>& errors) {
  return JsonObject()
      .Add("schema", 1)
      .Add("ok", false)
      .Raw("errors", JsonArrayOf(errors, ErrorJson))
      .Done();
}

// Where the data says how long the run is, `launcher plan` and the workers warn.
std::vector<std::string> WarningsOf(const JobSpec& spec) {
  const Train& train = spec.train();
  if (train.steps() == 0) return {};
  return job::ScheduleWarnings(train.schedule(), train.steps());
}

}  // namespace

int Validate(const ValidateArgs& args, std::ostream& out, std::ostream& err) {
  const bool json = args.common.output == Output::kJson;
  // The GPUs and cores of the host that it is checked on may be no node's of the job.
  const absl::StatusOr<job::LoadResult> result = LoadJobOfRun(args, Counted::kByCoordinator);
  if (result.ok() && !result->ok()) {
    if (json) {
      out << ErrorsJson(result->errors) << "\n";
    } else {
      err << result->FormatErrors();
    }
    return kExitBadJobFile;
  }
  const absl::Status refused = result.ok() ? result->admission : result.status();
  if (!refused.ok()) {
    job::Diagnostic error;
    error.file = job::NameInMessages(args.job.job_file);
    error.message = std::string(refused.message());
    if (json) {
      out << ErrorsJson({error}) << "\n";
    } else {
      err << "error: " << PrintableLines(error.message) << "\n";
    }
    return ExitCodeOf(refused, Input::kJobFile);
  }
  std::vector<std::string> warnings = result->warnings;
  for (std::string& warning : WarningsOf(result->spec)) warnings.push_back(std::move(warning));
  if (json) {
    out << JsonObject()
               .Add("schema", 1)
               .Add("ok", true)
               .Raw("job", job::ToJson(result->spec))
               .Raw("warnings", JsonArrayOf(warnings))
               .Done()
        << "\n";
  } else {
    for (const std::string& warning : warnings) err << "warning: " << warning << "\n";
    out << job::ToYaml(result->spec);
  }
  return kExitOk;
}

}  // namespace lockstep::launcher
