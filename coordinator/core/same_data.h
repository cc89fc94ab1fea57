// SPDX-License-Identifier: Apache-2.0
// Whether the workers of a generation train on the same data: between hosts by what the files hold,
// on one by what its file system says of them.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_SAME_DATA_H_
#define LOCKSTEP_COORDINATOR_CORE_SAME_DATA_H_

#include <string>
#include <vector>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

// In the order of their places; all are ready.
using Members = std::vector<Worker*>;

// Returns why the data of `worker` are not those of `first`, on another host; empty: nothing says
// so. Both are ready.
std::string OtherData(const Worker& worker, const Worker& first);

// The first one that tells of its data, a member before others; null: nobody does.
const Worker* DataSpeaker(const Job& job, const Members& members);

// Says of those that are to join whether files of their data may have changed since one on their
// node opened them: a file that was only touched is as good as before, so they are not refused.
void TellWrittenData(Context& context, const Job& job, const Members& members);

// They are in one generation: what was another data on their nodes has been put back.
void NoteSameData(const Members& members, Job& job);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_SAME_DATA_H_
