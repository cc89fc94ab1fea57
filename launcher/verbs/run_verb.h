// SPDX-License-Identifier: Apache-2.0
// What each verb of the table (launcher/cli/verb_table.h) does: an overload for its arguments, so
// that a verb without one does not compile. Each blocks until it is through, prints data on stdout
// and messages on stderr, and returns the exit code. Thread-safety: called by main.
#ifndef LOCKSTEP_LAUNCHER_VERBS_RUN_VERB_H_
#define LOCKSTEP_LAUNCHER_VERBS_RUN_VERB_H_

#include "launcher/cli/arguments.h"

namespace lockstep::launcher {

// These fork the spawner first, while the process has one thread (run_here.cc, join.cc,
// ordered_guest.cc).
int RunVerb(const RunArgs& args);
int RunVerb(const JoinArgs& args);
int RunVerb(const GuestArgs& args);

// Of a job or a model, answered by the worker program (offline.cc) or here (validate.cc).
int RunVerb(const ValidateArgs& args);
int RunVerb(const PlanArgs& args);
int RunVerb(const EvalArgs& args);
int RunVerb(const PredictArgs& args);
int RunVerb(const CompareArgs& args);
int RunVerb(const GenerateArgs& args);
int RunVerb(const BenchArgs& args);
int RunVerb(const DoctorArgs& args);

// Of a running coordinator (jobs.cc, fetch.cc, top.cc).
int RunVerb(const SubmitArgs& args);
int RunVerb(const ListArgs& args);
int RunVerb(const NodesArgs& args);
int RunVerb(const DescribeArgs& args);
int RunVerb(const LogsArgs& args);
int RunVerb(const CancelArgs& args);
int RunVerb(const FetchArgs& args);
int RunVerb(const ScaleArgs& args);
int RunVerb(const TopArgs& args);
// Of its nodes (drain.cc).
int RunVerb(const DrainArgs& args);
int RunVerb(const UndrainArgs& args);
// How jobs wait, and what they have used (queue.cc).
int RunVerb(const HoldArgs& args);
int RunVerb(const UsageArgs& args);
int RunVerb(const TokenArgs& args);

// Of the program itself.
int RunVerb(const VersionArgs& args);
int RunVerb(const HelpArgs& args);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_VERBS_RUN_VERB_H_
