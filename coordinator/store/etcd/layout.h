// SPDX-License-Identifier: Apache-2.0
// The store's keys in etcd and what they hold. Below the prefix:
//   leader              EtcdLeader, with the lease of who leads
//   newest              EtcdNewest, written in each transaction; of one it makes a batch count
//   rows/KEY            EtcdRow
//   pieces/HEX/NNNNNNNN further pieces of the value of the row whose key is HEX
//   parts/NNNNNNNN      a batch that needs several transactions, as pieces of an EtcdChanges
// A row or a batch is cut because etcd takes 128 changes and 1.5 MiB in a transaction.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_STORE_ETCD_LAYOUT_H_
#define LOCKSTEP_COORDINATOR_STORE_ETCD_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/store/store.h"
#include "proto/etcd.pb.h"
#include "proto/etcd_rows.pb.h"

namespace lockstep::coordinator {

// Of one transaction, with room for what guards it (etcd's --max-txn-ops and --max-request-bytes).
inline constexpr size_t kEtcdMostOps = 100;
inline constexpr size_t kEtcdMostBytes = 1 << 20;
// Of one value.
inline constexpr size_t kEtcdPiece = 512 << 10;

struct EtcdLayout {
  std::string prefix;  // ends with '/'

  // The key of who leads.
  std::string Leader() const { return prefix + "leader"; }
  // The key of the newest batch's mark.
  std::string Newest() const { return prefix + "newest"; }
  // Returns what the keys of all rows begin with.
  std::string Rows() const { return prefix + "rows/"; }
  // The same of pieces.
  std::string Pieces() const { return prefix + "pieces/"; }
  // The same of parts.
  std::string Parts() const { return prefix + "parts/"; }
  // Returns what those of a row's pieces begin with, and that of one of them, from 1.
  std::string PiecesOf(absl::string_view row) const;
  std::string Piece(absl::string_view row, int number) const;
  // The key of a batch's part, from 0.
  std::string Part(int number) const;
};

// The end of the range of all keys that begin with `prefix`, which is not empty.
std::string RangeEnd(std::string prefix);

// A hash (FNV-1a) of a row, or of a batch's parts (with an empty key).
uint64_t EtcdHash(absl::string_view key, absl::string_view value);

// Returns what a batch changes, by key: of rows with one key the last counts.
std::map<std::string, EtcdChange> ChangesOf(absl::Span<const Put> rows);

// The changes of etcd's keys that one changed row of batch `revision` needs; `pieces`: how many the
// row has now, 0: there is none.
std::vector<etcdserverpb::RequestOp> OpsOf(const EtcdLayout& layout, const EtcdChange& change,
                                           int64_t revision, int pieces);
// How many pieces the row has after the change.
int PiecesAfter(const EtcdChange& change);

// Cuts operations into transactions of which none is too large.
std::vector<std::vector<etcdserverpb::RequestOp>> CutOps(std::vector<etcdserverpb::RequestOp> ops);

// All changes as one text, cut into parts.
std::vector<std::string> CutChanges(const std::map<std::string, EtcdChange>& changes);

// What is read of etcd at one of its revisions.
struct EtcdContent {
  std::map<std::string, StoredRow> rows;
  std::map<std::string, int>
      pieces;  // how many there are, by row; one that has one alone is missing
  EtcdNewest newest;
  int64_t newest_mod = 0;  // etcd's revision that wrote it; 0: there is none
  bool has_parts = false;  // there are some, whether they count or not
  EtcdChanges unapplied;   // of the newest batch, if it lies in parts
};

// Makes rows of etcd's keys (all below the prefix); a batch that lies in parts counts when `newest`
// says so, and wholly. Errors: DataLoss, naming what is damaged or missing.
absl::StatusOr<EtcdContent> ContentOf(const EtcdLayout& layout,
                                      const std::vector<etcdserverpb::KeyValue>& all);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_ETCD_LAYOUT_H_
