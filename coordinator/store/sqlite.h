// SPDX-License-Identifier: Apache-2.0
// SQLite's C interface with our statuses: a connection, prepared statements, and what its codes
// mean to a user. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_STORE_SQLITE_H_
#define LOCKSTEP_COORDINATOR_STORE_SQLITE_H_

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::coordinator {

// One statement, prepared once and run many times. Parameters count from 1, columns from 0.
class SqliteStatement {
 public:
  SqliteStatement() = default;

  // A text or blob that stays as it is until Reset.
  void BindText(int parameter, absl::string_view text);
  void BindBlob(int parameter, absl::string_view bytes);
  void BindInt(int parameter, int64_t number);
  // Takes the next row: true when there is one. Errors: as SqliteDatabase::Failure.
  absl::StatusOr<bool> Step();
  // Of the row that Step took; valid until the next Step or Reset.
  std::string Bytes(int column) const;
  int64_t Int(int column) const;
  // Ready to be bound and run again.
  void Reset();

 private:
  friend class SqliteDatabase;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  const class SqliteDatabase* database_ = nullptr;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

// One connection to the database file `path`.
class SqliteDatabase {
 public:
  // Opens an existing file, empty or not. A lock that somebody holds is waited for at most
  // `busy_millis`. Errors: as Failure.
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> Open(const std::string& path,
                                                              int busy_millis,
                                                              bool read_only = false);

  // Makes `to` what this is at one moment, while others go on to write here. Errors: as Failure, of
  // either.
  absl::Status CopyTo(const SqliteDatabase& to) const;

  // Runs one statement without results. Errors: as Failure.
  absl::Status Run(const std::string& sql) const;
  // The first column of the first row; empty when there is none. Errors: as Failure.
  absl::StatusOr<std::string> Ask(const std::string& sql) const;
  // Errors: as Failure.
  absl::StatusOr<SqliteStatement> Prepare(const std::string& sql) const;
  // Ends a transaction that has failed, if one is open.
  void Rollback() const;

  // Says what SQLite's code `rc` means. Codes: FailedPrecondition (locked, permission), DataLoss
  // (damaged), ResourceExhausted (disk or memory full), Unavailable (the disk fails), Internal.
  absl::Status Failure(int rc) const;
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
  };
  explicit SqliteDatabase(const std::string& path) : path_(path) {}

  const std::string path_;
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_STORE_SQLITE_H_
