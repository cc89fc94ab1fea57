// SPDX-License-Identifier: Apache-2.0
#include "job/job_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/fd.h"
#include "common/status.h"
#include "job/decode.h"
#include "job/meaning/workers.h"
#include "job/overrides.h"
#include "job/reporter.h"
#include "job/resolve.h"
#include "job/yaml_tree.h"

namespace lockstep::job {
namespace {

// A job without a name is named after it.
constexpr char kStandardInputName[] = "standard input";

}  // namespace

// At most one byte more than a job may have, so that the parser can refuse it.
absl::StatusOr<std::string> ReadJobFile(const std::string& path) {
  // As it is: a socket cannot be opened anew, nor can another user's file.
  const bool given = path == kStandardInput;
  const UniqueFd opened(given ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = given ? STDIN_FILENO : opened.get();
  std::string text;
  if (fd >= 0) {
    char buffer[1 << 14];
    ssize_t got = 0;
    while (text.size() <= kMaxYamlBytes) {
      got = ::read(fd, buffer, sizeof(buffer));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      text.append(buffer, got);
    }
    if (got >= 0) return text;
  }
  return ErrnoStatus(errno, "cannot read the job file");
}

namespace {

void Read(const std::string& name, const std::vector<std::string>& sets, absl::string_view text,
          const WorkerFlags& flags, Reporter* reporter, LoadResult* result) {
  YamlDocument document = ParseYaml(text, 0);
  for (const YamlProblem& problem : document.problems) {
    reporter->Error(problem.place, problem.message);
  }
  if (!document.problems.empty()) return;
  if (document.empty) document.root.kind = YamlNode::Kind::kMap;
  if (document.root.kind != YamlNode::Kind::kMap) {
    reporter->Error(document.root.place,
                    "a job file is a mapping of keys such as 'name' and 'train' or 'run'");
    return;
  }
  CheckDuplicates(document.root, reporter);
  CheckSetup(document.root, reporter);
  ApplyOverrides(sets, &document.root, reporter);
  ExpandRun(&document.root);
  ExpandProcs(&document.root, reporter);
  JobSpec& spec = result->spec;
  const Written written = DecodeJob(document.root, &spec, reporter);
  if (name == kStandardInputName && !written.count("name") && spec.has_checkpoint() &&
      spec.checkpoint().dir().empty()) {
    reporter->Error(document.root.place,
                    "a job from the standard input has no file to be named after, and its "
                    "checkpoints have no folder: give it a 'name', or --set name=NAME");
  }
  result->named = written.count("name") > 0;
  FillDefaults(name, written, &spec);
  if (flags.nproc_per_node.has_value()) spec.mutable_resources()->clear_nproc_by();
  if (flags.any()) {
    const Resources& file = spec.resources();
    result->admission =
        OverrideWorkers(flags.nodes.value_or(file.nodes()),
                        flags.nproc_per_node.value_or(file.nproc_per_node()), &spec);
  }
  CheckRules(spec, written, flags, reporter);
}

}  // namespace

std::string NameInMessages(const std::string& path) {
  return path == kStandardInput ? kStandardInputName : path;
}

LoadResult ParseJob(std::string_view input, const std::string& name,
                    const std::vector<std::string>& sets, const WorkerFlags& flags) {
  absl::string_view text(input.data(), input.size());
  LoadResult result;
  result.source = std::string(text);
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");  // a byte order mark
  Reporter reporter(name, text, sets);
  Read(name, sets, text, flags, &reporter, &result);
  result.errors = reporter.Take();
  return result;
}

LoadResult LoadJobFile(const std::string& path, const std::vector<std::string>& sets,
                       const WorkerFlags& flags) {
  const absl::StatusOr<std::string> text = ReadJobFile(path);
  const std::string name = NameInMessages(path);
  if (text.ok()) return ParseJob(*text, name, sets, flags);
  LoadResult result;
  Diagnostic diagnostic;
  diagnostic.file = name;
  diagnostic.message = std::string(text.status().message());
  result.errors.push_back(std::move(diagnostic));
  return result;
}

}  // namespace lockstep::job
