// SPDX-License-Identifier: Apache-2.0
// Finds failures and names the first one. Workers that report a lost peer, end because their
// generation was aborted, or were killed by their agent as asked are victims of another's failure.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_FAILURES_H_
#define LOCKSTEP_COORDINATOR_CORE_FAILURES_H_

#include <string>
#include <vector>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// Returns whether the worker ended, gave up or was judged although the job wanted its work.
inline bool Failed(const Worker& worker) {
  if (worker.finished || worker.leaving()) return false;
  return worker.dead() || worker.failed || worker.verdict_serial != 0;
}
// Returns whether any of the job's has.
bool AnyFailed(const Job& job);
// Returns whether any of the job's workers has what the job has done: a member of the newest
// generation that has not failed. A job that began again has none before its first generation.
bool AnyHolder(const Job& job);

// How it failed, in words: "killed by SIGKILL (signal 9)".
std::string Cause(const Worker& worker);
// The same with who it was: "rank 1 on node-b (pid 7): killed by SIGKILL (signal 9)".
std::string SayFailed(const Worker& worker);

// Returns whether the worker's failure is the user's to mend, or its machine's, so that another
// life of it there would end the same way: wrong input, no memory, damaged data, another build.
bool IsForGood(const Worker& worker);

// Returns whether that is its node's data, which is not the job's: other jobs may be well there.
bool HasOtherData(const Worker& worker);

// Returns whether it could not be started for what may pass (WorkerExited::may_pass).
bool MayStartLater(const Worker& worker);

// The first of `failed`, or whom they lost when all of them are victims; it may live. Null members
// are not allowed; at least one.
const Worker& Named(const Job& job, const std::vector<const Worker*>& failed);

// Names that one, and its victims.
Fault NameFault(const Job& job, const std::vector<const Worker*>& failed);

// When the members of a generation have all left it: that one of those who are gone did not hear
// of one who lives was the network's fault, and nobody's.
void ForgetSilentLinks(Job& job);

// Decides whether the survivors of an ending job are killed now: at once when the culprit is known
// and no member of a training's generation is there that has not failed, else a little later.
void UpdateKill(Context& context, Job& job);

// Returns whether what a worker said before its end may still come: its agent's report of that may
// be ahead of it. No longer than a moment, and no more when its connection has ended.
bool AwaitsLastWords(const Context& context, const Job& job);

// Puts the first failure, its cause and its victims into the job: fault, reason, exit code.
void ConcludeFailure(Context& context, Job& job);

// Records the coordinator's own finding about a worker; the first one stays.
void Judge(Context& context, Job& job, Worker& worker, const std::string& verdict);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_FAILURES_H_
