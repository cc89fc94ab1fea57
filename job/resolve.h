// SPDX-License-Identifier: Apache-2.0
// Defaults, and the rules that join several fields of a job.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_RESOLVE_H_
#define LOCKSTEP_JOB_RESOLVE_H_

#include <string>

#include "job/decode.h"
#include "job/reporter.h"
#include "proto/job.pb.h"

namespace lockstep::job {

// Fills in every default that the file did not write. `file` gives the job its name.
void FillDefaults(const std::string& file, const Written& written, JobSpec* spec);

// Reports what is wrong between the fields of a spec whose defaults are filled in. `flags`: what
// its workers are said by beside the file.
void CheckRules(const JobSpec& spec, const Written& written, const WorkerFlags& flags,
                Reporter* reporter);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_RESOLVE_H_
