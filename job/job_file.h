// SPDX-License-Identifier: Apache-2.0
// job.yaml to JobSpec. All errors of a file are found in one go. Only this folder knows YAML.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_JOB_FILE_H_
#define LOCKSTEP_JOB_JOB_FILE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace lockstep::job {

// One problem. Lines and columns count from 1; 0 when the problem has no place (such as a bad
// --set).
struct Diagnostic {
  std::string file;
  int line = 0;
  int column = 0;
  std::string message;      // what is wrong and what would be right
  std::string source_line;  // the line as the user wrote it
  int width = 1;            // characters to underline

  // "file:line:col: error: message", the source line and a caret.
  std::string Format() const;
};

// What --nnodes and --nproc-per-node ask for instead of the file's numbers (see job/workers.h).
struct WorkerFlags {
  std::optional<int> nodes;
  std::optional<int> nproc_per_node;
  // The hosts, or what is counted on them, say later how many workers there are, not the file.
  bool replaced = false;
  bool any() const { return nodes.has_value() || nproc_per_node.has_value(); }
};

// A job's name has so many characters at most.
inline constexpr size_t kMostNameLength = 63;

struct LoadResult {
  JobSpec spec;        // resolved: every default filled in, flags applied
  bool named = false;  // its name is written, and not taken from the file's
  std::string source;  // the text of the file
  std::vector<Diagnostic> errors;
  std::vector<std::string> warnings;  // what it was taken for, a sentence each
  // FailedPrecondition when the flags ask for more workers than the job may have.
  absl::Status admission;
  bool ok() const { return errors.empty(); }
  std::string FormatErrors() const;  // all of them, one after another
};

// The path that stands for the standard input.
inline constexpr char kStandardInput[] = "-";
// Returns what messages call the file at `path`: "standard input", or the path.
std::string NameInMessages(const std::string& path);

// Returns the file's text. Blocks, as long as nobody types it where it is a terminal. Errors: why
// the file cannot be read.
absl::StatusOr<std::string> ReadJobFile(const std::string& path);
// Reads, applies `sets` ("train.epochs=10", in order; each value is YAML), resolves, applies
// `flags`, and checks what came of it. A file that cannot be read is a diagnostic too.
LoadResult LoadJobFile(const std::string& path, const std::vector<std::string>& sets,
                       const WorkerFlags& flags = {});
// The same on text; `name` stands for the file in messages.
LoadResult ParseJob(std::string_view text, const std::string& name,
                    const std::vector<std::string>& sets, const WorkerFlags& flags = {});

// What stands for a secret's value where a spec is shown.
inline constexpr char kHiddenSecret[] = "***";

// The spec as job.yaml text: comes back as the same spec, but for secrets, which are hidden, for
// bounds of `elastic` that its number of workers is beyond, which are that number then, and for
// what was counted for `nproc_by`, which is counted anew.
std::string ToYaml(const JobSpec& spec);
// The spec as JSON (protobuf's mapping with the field names of the file).
std::string ToJson(const JobSpec& spec);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_JOB_FILE_H_
