// SPDX-License-Identifier: Apache-2.0
// A node as its row in the journal, and back. What its agent says again when it connects is not in
// it. Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_NODE_RECORD_H_
#define LOCKSTEP_COORDINATOR_CORE_NODE_RECORD_H_

#include "coordinator/core/state.h"
#include "proto/journal.pb.h"

namespace lockstep::coordinator {

NodeRecord ToRecord(const Node& node);
// By `now` it has failed, and is left out no longer than `rules` let it be.
void FromRecord(const NodeRecord& record, const TrustRules& rules, absl::Time now, Node& node);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_NODE_RECORD_H_
