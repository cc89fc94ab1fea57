// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/access.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/questions.h"

namespace lockstep::coordinator {

const std::vector<AccessRule>& AccessTable() {
  constexpr Reach kNone = Reach::kNone, kOwn = Reach::kOwn, kAll = Reach::kAll;
  static const auto* const table = new std::vector<AccessRule>{
      // call, what it is, submit, operate, admin, join, worker
      {"Coordinator/SubmitJob", "submit a job", kOwn, kOwn, kAll},
      {"Coordinator/ListJobs", "list jobs", kAll, kAll, kAll},
      {"Coordinator/DescribeJob", "see all about a job", kOwn, kAll, kAll},
      {"Coordinator/CancelJob", "cancel a job", kOwn, kAll, kAll},
      {"Coordinator/FollowJob", "follow a job", kOwn, kAll, kAll},
      {"Coordinator/GetCluster", "see the nodes", kAll, kAll, kAll},
      {"Coordinator/ScaleJob", "scale a job", kOwn, kAll, kAll},
      {"Coordinator/DrainNode", "drain a node", kNone, kAll, kAll},
      {"Coordinator/UndrainNode", "undrain a node", kNone, kAll, kAll},
      {"Coordinator/HoldJob", "hold or release a job", kOwn, kAll, kAll},
      {"Coordinator/GetUsage", "see what users have used", kAll, kAll, kAll},
      {"Coordinator/AgentSession", "be a node", kNone, kNone, kAll, kAll},
      {"Coordinator/WorkerSession", "be a worker", kNone, kNone, kNone, kNone, kOwn},
      {"Files/FindFiles", "see a job's files", kOwn, kAll, kAll},
      {"Files/Fetch", "fetch a job's files", kOwn, kAll, kAll},
      {"Files/Send", "send a job's files", kNone, kNone, kAll, kAll},
      {"Packages/HasPackage", "look for a workdir", kAll, kAll, kAll},
      {"Packages/PutPackage", "send a workdir", kAll, kAll, kAll},
      {"Packages/GetPackage", "take a job's workdir", kNone, kNone, kAll, kAll},
      {"Access/CreateToken", "make a token", kNone, kNone, kAll},
      {"Access/ListTokens", "list tokens", kOwn, kOwn, kAll},
      {"Access/RevokeToken", "revoke a token", kOwn, kOwn, kAll},
      {"Access/WhoAmI", "ask who one is", kAll, kAll, kAll, kAll, kAll},
      {"Access/RenewToken", "renew one's certificate", kAll, kAll, kAll, kAll, kAll},
  };
  return *table;
}

namespace {

Reach ReachIn(const AccessRule& rule, Role role) {
  switch (role) {
    case ROLE_UNSPECIFIED:
      return Reach::kAll;
    case ROLE_SUBMIT:
      return rule.submit;
    case ROLE_OPERATE:
      return rule.operate;
    case ROLE_ADMIN:
      return rule.admin;
    case ROLE_JOIN:
      return rule.join;
    case ROLE_WORKER:
      return rule.worker;
    default:
      return Reach::kNone;
  }
}

// "operate or admin": the roles of users and nodes that go so far.
std::string RolesWith(const AccessRule& rule, Reach reach) {
  std::vector<std::string> names;
  for (const Role role : {ROLE_SUBMIT, ROLE_OPERATE, ROLE_ADMIN, ROLE_JOIN}) {
    if (ReachIn(rule, role) >= reach) names.push_back(RoleName(role));
  }
  return names.empty() ? "worker" : absl::StrJoin(names, " or ");
}

}  // namespace

const AccessRule* FindRule(absl::string_view call) {
  const auto& table = AccessTable();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const AccessRule& rule) { return rule.call == call; });
  return found == table.end() ? nullptr : &*found;
}

Reach ReachOf(absl::string_view call, Role role) {
  const AccessRule* const rule = FindRule(call);
  return rule == nullptr ? Reach::kNone : ReachIn(*rule, role);
}

std::string RoleName(Role role) {
  switch (role) {
    case ROLE_SUBMIT:
      return "submit";
    case ROLE_OPERATE:
      return "operate";
    case ROLE_ADMIN:
      return "admin";
    case ROLE_JOIN:
      return "join";
    case ROLE_WORKER:
      return "worker";
    default:
      return "none";
  }
}

absl::Status CheckCall(absl::string_view call, const Requester& who) {
  const AccessRule* const rule = FindRule(call);
  if (rule == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat("nobody may call ", call));
  }
  if (ReachIn(*rule, who.role()) != Reach::kNone) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the role ", RoleName(who.role()), " may not ",
                                                  rule->what, ": that takes the role ",
                                                  RolesWith(*rule, Reach::kOwn)));
}

absl::Status CheckOwner(absl::string_view call, const Requester& who, const std::string& user,
                        absl::string_view thing) {
  if (absl::Status may = CheckCall(call, who); !may.ok()) return may;
  const AccessRule& rule = *FindRule(call);
  const bool own = !who.user().empty() && who.user() == user;
  if (own || ReachIn(rule, who.role()) == Reach::kAll) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(thing, " is ", user.empty() ? "nobody" : user, "'s: who has the role ",
                   RoleName(who.role()), " may ", rule.what, " of their own (", who.user(),
                   "); others' take the role ", RolesWith(rule, Reach::kAll)));
}

absl::StatusOr<std::string> FindJobFor(const State& state, const std::string& reference,
                                       absl::string_view call, const Requester& who) {
  if (absl::Status may = CheckCall(call, who); !may.ok()) return may;
  if (ReachOf(call, who.role()) == Reach::kAll) return FindJobId(state, reference);
  if (!who.user().empty()) {
    absl::StatusOr<std::string> own = FindJobId(state, reference, who.user());
    if (!absl::IsNotFound(own.status())) return own;
  }
  absl::StatusOr<std::string> id = FindJobId(state, reference);
  if (!id.ok()) return id;
  absl::Status may =
      CheckOwner(call, who, state.jobs.at(*id).request.user(), absl::StrCat("job ", *id));
  if (!may.ok()) return may;
  return id;
}

void HideOthers(const State& state, const Requester& who, ListJobsResponse& jobs) {
  if (ReachOf("Coordinator/DescribeJob", who.role()) == Reach::kAll) return;
  for (JobStatus& job : *jobs.mutable_jobs()) {
    if (!who.user().empty() && job.user() == who.user()) continue;
    // What is said of a job that runs, or ran, or leaves a node out, can have a worker's words.
    const auto found = state.jobs.find(job.job_id());
    const bool leaves_out = found != state.jobs.end() && !found->second.excluded.empty();
    if (job.state() != PENDING || leaves_out) job.clear_reason();
    job.clear_run_dir();
    job.clear_result();
    job.clear_stall();
    job.clear_straggler();
    job.clear_progress();
    job.clear_moves();
  }
}

void HideOthers(const State& state, const Requester& who, GetClusterResponse& cluster) {
  if (ReachOf("Coordinator/DescribeJob", who.role()) == Reach::kAll) return;
  for (NodeStatus& node : *cluster.mutable_nodes()) {
    for (NodeExclusion& exclusion : *node.mutable_exclusions()) {
      const auto job = state.jobs.find(exclusion.job_id());
      const bool own = job != state.jobs.end() && !who.user().empty() &&
                       job->second.request.user() == who.user();
      if (!own) exclusion.set_reason("of another user's job");
    }
  }
}

}  // namespace lockstep::coordinator
