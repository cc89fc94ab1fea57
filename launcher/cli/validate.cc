// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/validate.h"

#include <string>

#include "absl/strings/str_format.h"
#include "job/job_file.h"
#include "job/utf8.h"
#include "launcher/cli/exit_codes.h"

namespace lockstep::launcher {
namespace {

// A JSON string. The text may hold any bytes of a path or a flag: what is no UTF-8 becomes '?'.
std::string JsonText(const std::string& text) {
  std::string out = "\"";
  for (const char c : job::Printable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void WriteErrors(const job::LoadResult& result, std::ostream& out) {
  out << R"({"schema":1,"ok":false,"errors":[)";
  const char* separator = "";
  for (const job::Diagnostic& error : result.errors) {
    out << separator << R"({"file":)" << JsonText(error.file)
        << absl::StrFormat(R"(,"line":%d,"column":%d,"width":%d,"message":)", error.line,
                           error.column, error.width)
        << JsonText(error.message) << "}";
    separator = ",";
  }
  out << "]}\n";
}

}  // namespace

int RunValidate(const ValidateArgs& args, std::ostream& out, std::ostream& err) {
  const job::LoadResult result = job::LoadJobFile(args.job_file, args.sets);
  const bool json = args.common.output == Output::kJson;
  if (result.ok()) {
    if (json) {
      out << R"({"schema":1,"ok":true,"job":)" << job::ToJson(result.spec) << "}\n";
    } else {
      out << job::ToYaml(result.spec);
    }
    return kExitOk;
  }
  if (json) {
    WriteErrors(result, out);
  } else {
    err << result.FormatErrors();
  }
  return kExitBadJobFile;
}

}  // namespace lockstep::launcher
