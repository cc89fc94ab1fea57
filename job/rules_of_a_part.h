// SPDX-License-Identifier: Apache-2.0
// What the checks of rules that join several fields of a job have in common: the job, and where
// errors are reported.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_JOB_RULES_OF_A_PART_H_
#define LOCKSTEP_JOB_RULES_OF_A_PART_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "job/decode.h"
#include "job/reporter.h"
#include "proto/job.pb.h"

namespace lockstep::job {

class RulesOfAPart {
 public:
  // All must outlive it.
  RulesOfAPart(const JobSpec& spec, const Written& written, Reporter* reporter)
      : spec_(spec), written_(written), reporter_(*reporter) {}

 protected:
  bool IsWritten(absl::string_view path) const { return written_.find(path) != written_.end(); }

  // At the value of the first of `paths` that the file has, else at the nearest mapping around it.
  void Error(const std::vector<std::string>& paths, std::string message) {
    for (const std::string& path : paths) {
      const auto found = written_.find(path);
      if (found != written_.end()) return reporter_.Error(ValuePlace(*found->second), message);
    }
    std::string path = paths.front();
    for (size_t dot = path.rfind('.'); dot != std::string::npos; dot = path.rfind('.')) {
      path.resize(dot);
      const auto found = written_.find(path);
      if (found != written_.end()) return reporter_.Error(found->second->key.place, message);
    }
    reporter_.Error(Place{}, message);
  }

  const JobSpec& spec_;
  const Written& written_;
  Reporter& reporter_;
};

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_RULES_OF_A_PART_H_
