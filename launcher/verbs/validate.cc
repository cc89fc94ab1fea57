// SPDX-License-Identifier: Apache-2.0
#include "launcher/verbs/validate.h"

#include <string>
#include <utility>
#include <vector>

#include "common/json.h"
#include "job/job_file.h"
#include "launcher/cli/exit_codes.h"
#include "launcher/follow/text.h"
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

}  // namespace

int Validate(const ValidateArgs& args, std::ostream& out, std::ostream& err) {
  const bool json = args.common.output == Output::kJson;
  const absl::StatusOr<job::LoadResult> result = LoadJobOfRun(args);
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
    error.file = args.job.job_file;
    error.message = std::string(refused.message());
    if (json) {
      out << ErrorsJson({error}) << "\n";
    } else {
      err << "error: " << PrintableLines(error.message) << "\n";
    }
    return ExitCodeOf(refused);
  }
  if (json) {
    out << JsonObject()
               .Add("schema", 1)
               .Add("ok", true)
               .Raw("job", job::ToJson(result->spec))
               .Done()
        << "\n";
  } else {
    out << job::ToYaml(result->spec);
  }
  return kExitOk;
}

}  // namespace lockstep::launcher
