// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/assignment_size.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

// Names, a device and a token of each assignment, besides what the user has written.
constexpr int64_t kOfAnyAssignment = 1024;

int64_t BytesOfAssignment(const SubmitJobRequest& request) {
  return static_cast<int64_t>(request.spec().ByteSizeLong() + request.source().size() +
                              request.submit_dir().size() + request.user().size()) +
         kOfAnyAssignment;
}

// Workers that a node's agent is told of at most: as many as the largest one has slots, whoever's
// they are, or as its file places them.
int64_t MostOnANode(const State& state, const JobSpec& spec) {
  int64_t largest = spec.resources().nproc_per_node();
  for (const auto& [id, node] : state.nodes) largest = std::max<int64_t>(largest, node.slots);
  return std::clamp<int64_t>(largest, 1, kMaxWorkers);
}

}  // namespace

std::string WhyTooLargeToAssign(const State& state, const SubmitJobRequest& request) {
  const int64_t bytes = BytesOfAssignment(request);
  if (bytes * kMaxWorkers <= kMostAssigned) return "";
  const int64_t workers = MostOnANode(state, request.spec());
  if (bytes * workers <= kMostAssigned) return "";
  return absl::StrCat(
      "the job file has ", bytes,
      " bytes with its defaults, and a node's agent is told as many for each of up to ", workers,
      " workers there, of this job and of others: ", bytes * workers, " bytes, of ", kMostAssigned,
      " at most; put what is long in 'env' into a file that the job reads");
}

}  // namespace lockstep::coordinator
