// SPDX-License-Identifier: Apache-2.0
// What can be asked of the coordinator's state; nothing is changed by it.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_QUESTIONS_H_
#define LOCKSTEP_COORDINATOR_CORE_QUESTIONS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "proto/coordinator.pb.h"

namespace lockstep::coordinator {

// The id of the job that `reference` means: an id; a name, of the job that has not ended, or of the
// newest; or the beginning of one job's id. Errors: NotFound; FailedPrecondition when several jobs
// are meant, which it lists.
absl::StatusOr<std::string> FindJobId(const State& state, const std::string& reference,
                                      const std::string& user = "");
// Errors: as FindJobId.
absl::StatusOr<DescribeJobResponse> DescribeJob(const State& state, const std::string& reference,
                                                absl::Time now);
// A page holds so much at most, unless a single job is larger.
inline constexpr size_t kMostPageBytes = size_t{8} << 20;
// The page that is asked for; without a page_size all at once. Errors: InvalidArgument.
absl::StatusOr<ListJobsResponse> ListJobs(const State& state, const ListJobsRequest& request,
                                          absl::Time now);
GetClusterResponse GetCluster(const State& state, absl::Time now);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_QUESTIONS_H_
