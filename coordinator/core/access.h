// SPDX-License-Identifier: Apache-2.0
// Who may do what: one table of calls and roles, and whose job something is. The service asks the
// table before it takes a call (service/gate.h); the core asks again of every change, and whether
// the job is the asker's.
//
// All who have a role of a user see all jobs in lists (id, name, user, state, what they have of the
// cluster), because they wait for each other; what a job is, prints and leaves, and every change of
// it, is its owner's and the operators'.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_ACCESS_H_
#define LOCKSTEP_COORDINATOR_CORE_ACCESS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/state.h"
#include "proto/access.pb.h"

namespace lockstep::coordinator {

// How far a role goes with a call.
enum class Reach {
  kNone,
  kOwn,  // what is one's own
  kAll,
};

// A row of the table.
struct AccessRule {
  const char* call;  // "Coordinator/SubmitJob"
  const char* what;  // "submit a job": for messages
  Reach submit = Reach::kNone;
  Reach operate = Reach::kNone;
  Reach admin = Reach::kNone;
  Reach join = Reach::kNone;
  Reach worker = Reach::kNone;
};
// Of all calls, by service.
const std::vector<AccessRule>& AccessTable();

// Null: there is no such call, which nobody may make.
const AccessRule* FindRule(absl::string_view call);

// How far `role` goes with `call`. ROLE_UNSPECIFIED is the coordinator itself: kAll.
Reach ReachOf(absl::string_view call, Role role);

// "submit", "operate", "admin", "join", "worker".
std::string RoleName(Role role);

// Checks whether `who` may make the call at all. Errors: PermissionDenied, with the role that it
// takes.
absl::Status CheckCall(absl::string_view call, const Requester& who);

// Checks whether something of `user` is within reach; `thing` names it. Errors: PermissionDenied,
// with whose it is and the role that it takes.
absl::Status CheckOwner(absl::string_view call, const Requester& who, const std::string& user,
                        absl::string_view thing);

// The id of the job that `reference` names: who may change their own alone means one of theirs
// first. Errors: as FindJobId; PermissionDenied (it is somebody else's).
absl::StatusOr<std::string> FindJobFor(const State& state, const std::string& reference,
                                       absl::string_view call, const Requester& who);

// Takes out of a list what is not the asker's to see of others' jobs.
void HideOthers(const State& state, const Requester& who, ListJobsResponse& jobs);
// The same of a list of nodes: why others' jobs leave one out.
void HideOthers(const State& state, const Requester& who, GetClusterResponse& cluster);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_ACCESS_H_
