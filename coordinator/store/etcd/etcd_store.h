// SPDX-License-Identifier: Apache-2.0
// Rows in an etcd cluster, written by the coordinator that leads (election.h). Each transaction is
// guarded by the leader's key and by the transaction before it: it happens once, in order, and only
// while this coordinator's key is there, however often it is sent and however late it arrives. So a
// reply that was lost is asked for by sending the same again, and when that is refused by reading.
// A batch that is too large for one transaction is laid down in parts, counts wholly from the
// moment that one small transaction says so, and is then moved into the rows; a coordinator that
// finds it half moved ends the move
// (layout.h). Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_STORE_ETCD_ETCD_STORE_H_
#define LOCKSTEP_COORDINATOR_STORE_ETCD_ETCD_STORE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/store/etcd/client.h"
#include "coordinator/store/etcd/election.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {

// The store of the coordinator that leads by `election`, which outlives it. PutBatch waits while
// etcd does not answer, as long as this one leads; its errors are ResourceExhausted (etcd has no
// space) and Aborted (this one leads no more, or a row has another revision). It returns OK only
// while this one leads. Blocks for etcd, and ends the move of a batch that an earlier leader left.
// Errors: as the election's loss, or of the client.
absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(Election* election);

// All rows as they are at one moment, by key, whoever leads. Blocks while etcd goes on answering,
// with at most `patience` for each answer. Errors: DataLoss, or of the client.
absl::StatusOr<std::vector<StoredRow>> ReadEtcdRows(EtcdClient* etcd, const EtcdLayout& layout,
                                                    absl::Duration patience);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_ETCD_ETCD_STORE_H_
