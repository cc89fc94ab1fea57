// SPDX-License-Identifier: Apache-2.0
// Collects the errors of one job file, with the text that each one points at.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_JOB_REPORTER_H_
#define LOCKSTEP_JOB_REPORTER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "job/job_file.h"
#include "job/yaml_tree.h"

namespace lockstep::job {

class Reporter {
 public:
  // `sets` as given on the command line: source k of a Place is sets[k - 1].
  Reporter(std::string file, absl::string_view text, const std::vector<std::string>& sets);

  // An error at `place`, which becomes file, line and column with the line's text.
  void Error(const Place& place, std::string message);
  // An error of sets[set], with `width` characters underlined from byte `offset` of its text.
  void SetError(int set, size_t offset, size_t width, std::string message);

  bool ok() const { return errors_.empty(); }
  // The errors in the order of the file, those of --set last. At most kMaxErrors, then one that
  // says so.
  std::vector<Diagnostic> Take();

  static constexpr size_t kMaxErrors = 100;

 private:
  struct Item {
    Place place;
    Diagnostic diagnostic;
  };
  absl::string_view LineOf(const Place& place) const;
  bool MayShowSecret(const Place& place);

  std::string file_;
  std::vector<std::vector<std::string>> lines_;  // by source
  std::vector<std::vector<bool>> with_secrets_;  // by source, by line; made by the first error
  std::vector<Item> errors_;
};

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_REPORTER_H_
