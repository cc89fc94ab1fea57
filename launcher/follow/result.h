// SPDX-License-Identifier: Apache-2.0
// How a finished run is told: the summary for people, in which no text of others can act on the
// terminal, and the JSON object for programs (docs/json_result.md).
// Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_FOLLOW_RESULT_H_
#define LOCKSTEP_LAUNCHER_FOLLOW_RESULT_H_

#include <string>

#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// One object on one line, with its line end.
std::string ResultJson(const JobStatus& status);

// A few lines: how it ended, accuracy, time and speed, memory by rank, where log and model lie.
// `logs`: what is said of them where they are not in the run's folder here, such as the command
// that brings them.
std::string ResultSummary(const JobStatus& told, const std::string& logs = "");

// Returns what an evaluation is the mean of: "targets" where a sample has several, else "samples".
std::string CountedBy(const EvalResult& eval);

// A failure: the first failed rank, its last lines, its victims.
std::string FaultText(const Fault& told);

// Returns what the launcher exits with after a job in a final state.
int ExitCodeOfJob(const JobStatus& status);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_FOLLOW_RESULT_H_
