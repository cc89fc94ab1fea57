// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/assignment_size.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "job/meaning/defaults.h"
#include "job/meaning/workers.h"

namespace lockstep::coordinator {
namespace {

// Names, a device and a token of each assignment, besides what the user has written.
constexpr int64_t kOfAnyAssignment = 1024;

int64_t BytesOfAssignment(const SubmitJobRequest& request) {
  return static_cast<int64_t>(request.spec().ByteSizeLong() + request.source().size() +
                              request.submit_dir().size() + request.user().size()) +
         kOfAnyAssignment;
}

// Workers that it can have on one node: as its file places them, and as many as find room there
// when other nodes are lost.
int64_t MostOnANode(const State& state, const JobSpec& spec) {
  int64_t largest = 0;
  for (const auto& [id, node] : state.nodes) largest = std::max<int64_t>(largest, node.slots);
  int64_t most = job::MostUsefulWorkers(spec);
  if (!job::IsUncounted(spec)) {
    most = int64_t{job::MostWorkers(spec)} + spec.resources().standby();
  }
  most = std::min<int64_t>({most, kMaxWorkers, largest});
  return job::IsUncounted(spec) ? std::max<int64_t>(most, 1)
                                : std::max<int64_t>(most, spec.resources().nproc_per_node());
}

}  // namespace

std::string WhyTooLargeToAssign(const State& state, const SubmitJobRequest& request) {
  const int64_t bytes = BytesOfAssignment(request);
  if (bytes * kMaxWorkers <= kMostAssigned) return "";
  const int64_t workers = MostOnANode(state, request.spec());
  if (bytes * workers <= kMostAssigned) return "";
  return absl::StrCat(
      "the job file has ", bytes,
      " bytes with its defaults, and a node's agent is told them for each of up to ", workers,
      " workers there: ", bytes * workers, " bytes, of ", kMostAssigned,
      " at most; put what is long in 'env' into a file that the job reads");
}

}  // namespace lockstep::coordinator
