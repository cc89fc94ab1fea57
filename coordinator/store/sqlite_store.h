// SPDX-License-Identifier: Apache-2.0
// Rows in one SQLite database: written ahead (WAL), whole batches or nothing, and used by one
// process at a time. It survives the end of its process at any point and, unless told otherwise, of
// the machine. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_STORE_SQLITE_STORE_H_
#define LOCKSTEP_COORDINATOR_STORE_SQLITE_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/store/store.h"

namespace lockstep::coordinator {

struct SqliteOptions {
  // The folder of the database; made with mode 0700 when it is missing. The database has mode
  // 0600, since jobs may carry secrets.
  std::string folder;
  // Whether a batch is on the disk when PutBatch returns (synchronous=FULL). Without that it
  // survives the process, but not the machine's failure, and no write waits for the disk.
  bool sync = true;
};

// The database's file in its folder; beside it lies the write-ahead log, `journal.db-wal`.
inline constexpr const char* kJournalFile = "journal.db";
// Beside it, too: locked while a coordinator has the database, and names its process.
inline constexpr const char* kLockFile = "journal.lock";

// Opens the database, or makes a new one, and keeps it locked until the store is gone. Blocks for
// the disk, and a moment for a lock that may be given up. Errors: FailedPrecondition (another
// process has it, naming the process; it is no journal, or one of a newer version; permission),
// DataLoss (damaged), ResourceExhausted (disk full), Unavailable (the disk fails).
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteOptions& options);

// Copies the database of `folder` to the new file `file` as it is at one moment, also while a
// coordinator writes to it, and reads it whole: of a database that is damaged none is made. Blocks
// for the disk. Errors: AlreadyExists (there is such a file, which stays as it is), NotFound (there
// is no database), DataLoss (it is damaged or empty; naming the row), and as OpenSqliteStore.
absl::Status CopySqliteStore(const std::string& folder, const std::string& file);

// Makes the new database `file` of rows. Errors: as CopySqliteStore.
absl::Status WriteJournalFile(const std::string& file, absl::Span<const StoredRow> rows);

// The rows of a database that no coordinator uses, by key; checked as OpenSqliteStore does. Errors:
// as that.
absl::StatusOr<std::vector<StoredRow>> ReadJournalFile(const std::string& file);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_SQLITE_STORE_H_
