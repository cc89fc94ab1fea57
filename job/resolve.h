// SPDX-License-Identifier: Apache-2.0
// Defaults, and the rules that join several fields of a job.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_JOB_RESOLVE_H_
#define LOCKSTEP_JOB_RESOLVE_H_

#include <functional>
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

// The part of CheckRules that is about the numbers of workers.
void CheckWorkerRules(const JobSpec& spec, const Written& written, const WorkerFlags& flags,
                      Reporter* reporter);

// Says what is wrong, and at the value of which key.
using ErrorAt = std::function<void(const std::string& path, std::string message)>;

// The part of CheckRules that is about what the engine could make no model of, or not do on the
// device.
void CheckEngineRules(const JobSpec& spec, const ErrorAt& error);

}  // namespace lockstep::job

#endif  // LOCKSTEP_JOB_RESOLVE_H_
