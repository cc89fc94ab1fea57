// SPDX-License-Identifier: Apache-2.0
// The verbs of a user of a running coordinator: submit, list, describe, logs, cancel,
// scale. Each blocks
// until it is through, prints data on stdout and messages on stderr, and returns the exit code.
// Thread-safety: called by main.
#ifndef LOCKSTEP_LAUNCHER_VERBS_JOBS_H_
#define LOCKSTEP_LAUNCHER_VERBS_JOBS_H_

#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "launcher/cli/arguments.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// Prints the job's id; follows it if asked to (a signal then only stops following).
int RunSubmit(const SubmitArgs& args);
int RunList(const ListArgs& args);
int RunDescribe(const DescribeArgs& args);
int RunLogs(const LogsArgs& args);
int RunCancel(const CancelArgs& args);
int RunScale(const ScaleArgs& args);

// The table of `launcher list`.
std::string JobTable(const ListJobsResponse& response);
// The text of `launcher describe`.
std::string JobText(const DescribeJobResponse& response);
// Columns as wide as their widest cell; no blanks at the ends of lines.
std::string AlignedTable(const std::vector<std::vector<std::string>>& rows);
// One line of JSON with the proto's names.
std::string ToJsonText(const google::protobuf::Message& message);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_JOBS_H_
