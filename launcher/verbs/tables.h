// SPDX-License-Identifier: Apache-2.0
// A coordinator's answers as tables for people and as JSON for programs (docs/json_output.md). No
// text of others in them can act on a terminal.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_LAUNCHER_VERBS_TABLES_H_
#define LOCKSTEP_LAUNCHER_VERBS_TABLES_H_

#include <string>
#include <vector>

#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// Columns as wide as their widest cell; no blanks at the ends of lines.
std::string AlignedTable(const std::vector<std::vector<std::string>>& rows);

// `launcher list`: the table, and one line of JSON.
std::string ListTable(const ListJobsResponse& response);
std::string ListJson(const ListJobsResponse& response);

// `launcher nodes`.
std::string NodesTable(const GetClusterResponse& response);
std::string NodesJson(const GetClusterResponse& response);
std::string NodeJson(const NodeStatus& node);

// `launcher describe`. `fetch`: the command that brings the run's files here; empty: its folder is
// here.
std::string DescribeText(const DescribeJobResponse& response, const std::string& fetch = "");
std::string DescribeJson(const DescribeJobResponse& response);

// `launcher usage`.
std::string UsageTable(const GetUsageResponse& response);
std::string UsageJson(const GetUsageResponse& response);

// A job's status as one object, with its age.
std::string StatusJson(const JobStatus& status);
std::string MembersJson(const DescribeJobResponse& response);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_TABLES_H_
