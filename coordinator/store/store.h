// SPDX-License-Identifier: Apache-2.0
// Where the coordinator's rows are kept. All stores offer the same few things, so that memory, a
// file and a cluster's key-value service are equals. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_STORE_STORE_H_
#define LOCKSTEP_COORDINATOR_STORE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep::coordinator {

// Of a row's key. A transaction of etcd, which has 1.5 MiB, takes a key of this size several times
// (as hexadecimal digits, and as both ends of a range) beside a piece of the row's value.
inline constexpr size_t kMostKeyBytes = 64 << 10;

struct StoredRow {
  std::string key;
  std::string value;
  int64_t revision = 0;  // of the batch that wrote it, from 1
};

struct Put {
  std::string key;
  std::string value;
  // The row's revision must be this one (0: the row must not exist); -1: whatever it is.
  int64_t expected_revision = -1;
  // The row goes, if it is there; without a value.
  bool erase = false;
};

class Store {
 public:
  virtual ~Store() = default;

  // All rows, by key. Blocks for the read. Errors: DataLoss, Unavailable.
  virtual absl::StatusOr<std::vector<StoredRow>> GetAll() = 0;

  // Writes all rows or none; returns the batch's revision, which is higher than that of any row.
  // They are durable, as far as this store is, when it returns. Of rows with one key the last
  // counts; an empty batch writes nothing and returns the newest revision. Errors: InvalidArgument
  // when a key has more than kMostKeyBytes; Aborted when a row's revision before the batch is not
  // the expected one, or when another coordinator leads; ResourceExhausted (disk full),
  // Unavailable.
  virtual absl::StatusOr<int64_t> PutBatch(absl::Span<const Put> rows) = 0;

  // Of a store that several coordinators share: whether this one still leads, so that what it knows
  // is the newest. Does not block.
  virtual bool Leads() { return true; }
};

// Checks whether a store may have rows with these keys. Errors: InvalidArgument, with the beginning
// of one that is too long.
absl::Status CheckKeys(absl::Span<const Put> rows);

// Rows that live as long as the process.
std::unique_ptr<Store> MakeMemoryStore();

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_STORE_H_
