// SPDX-License-Identifier: Apache-2.0
// The durable part of the state as rows (proto/journal.proto), and back. A row is written when its
// value is another one than was last written, so no rule of the state machine has to remember what
// it changed; it only touches the job or the node.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_JOURNAL_H_
#define LOCKSTEP_COORDINATOR_CORE_JOURNAL_H_

#include <set>
#include <string>

#include "coordinator/core/context.h"
#include "google/protobuf/message_lite.h"

namespace lockstep::coordinator {

// The same bytes for equal messages, whatever the order of their maps.
std::string Bytes(const google::protobuf::MessageLite& message);

// Adds the changed rows of these jobs, and of `context.changed_nodes`, to the effects.
void CollectRows(Context& context, const std::set<std::string>& jobs);

// Adds the end of the rows of the job, of its workers alone, or of the node, to the effects; or of
// one row.
void EraseJobRows(Context& context, const Job& job);
void EraseWorkerRows(Context& context, const Job& job);
void EraseRow(Context& context, const std::string& key);
void EraseNodeRow(Context& context, const std::string& node_id);

// For tests: the key of a worker's row that is another one than the state says, though it counts as
// written; empty: there is none.
std::string FindStaleRow(const State& state);

// Touches what an earlier step could not write.
void TouchOwed(Context& context);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_JOURNAL_H_
