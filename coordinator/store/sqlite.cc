// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite.h"

#include <string.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep::coordinator {
namespace {

// The system's error of the last read or write that failed, of the database or of its log; 0: it is
// not known.
int LastError(sqlite3* database) {
  if (database == nullptr) return 0;
  int error = 0;
  sqlite3_file* log = nullptr;
  sqlite3_file_control(database, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
  if (log != nullptr && log->pMethods != nullptr) {
    log->pMethods->xFileControl(log, SQLITE_FCNTL_LAST_ERRNO, &error);
  }
  if (error == 0) sqlite3_file_control(database, "main", SQLITE_FCNTL_LAST_ERRNO, &error);
  return error == 0 ? sqlite3_system_errno(database) : error;
}

bool IsFull(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

// Returns whether `rc` is what comes of reading a database; a copy of it is written.
bool IsOfReading(int rc) {
  switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return true;
    default:
      return rc == SQLITE_IOERR_READ || rc == SQLITE_IOERR_SHORT_READ;
  }
}

const char* WhatToDo(int error) {
  return error == EFBIG ? "; raise the limit of a file's size (ulimit -f)"
                        : "; make room on its disk";
}

}  // namespace

void SqliteStatement::BindText(int parameter, absl::string_view text) {
  LS_CHECK(sqlite3_bind_text(statement_.get(), parameter, text.data(),
                             static_cast<int>(text.size()), SQLITE_STATIC) == SQLITE_OK);
}

void SqliteStatement::BindBlob(int parameter, absl::string_view bytes) {
  const char* data = bytes.data() == nullptr ? "" : bytes.data();  // null would be no value at all
  LS_CHECK(sqlite3_bind_blob(statement_.get(), parameter, data, static_cast<int>(bytes.size()),
                             SQLITE_STATIC) == SQLITE_OK);
}

void SqliteStatement::BindInt(int parameter, int64_t number) {
  LS_CHECK(sqlite3_bind_int64(statement_.get(), parameter, number) == SQLITE_OK);
}

absl::StatusOr<bool> SqliteStatement::Step() {
  const int rc = sqlite3_step(statement_.get());
  if (rc == SQLITE_ROW) return true;
  if (rc == SQLITE_DONE) return false;
  return database_->Failure(rc);
}

std::string SqliteStatement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  if (data == nullptr || size <= 0) return std::string();
  return std::string(static_cast<const char*>(data), static_cast<size_t>(size));
}

int64_t SqliteStatement::Int(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

void SqliteStatement::Reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(const std::string& path,
                                                                     int busy_millis,
                                                                     bool read_only) {
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(path));
  sqlite3* raw = nullptr;
  const int rc = sqlite3_open_v2(path.c_str(), &raw,
                                 (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE) |
                                     SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
                                 nullptr);
  database->database_.reset(raw);
  if (rc != SQLITE_OK) return database->Failure(rc);
  sqlite3_busy_timeout(raw, busy_millis);
  return database;
}

absl::Status SqliteDatabase::Run(const std::string& sql) const { return Ask(sql).status(); }

absl::StatusOr<std::string> SqliteDatabase::Ask(const std::string& sql) const {
  LS_ASSIGN_OR_RETURN(SqliteStatement statement, Prepare(sql));
  std::string first;
  bool fresh = true;
  while (true) {
    LS_ASSIGN_OR_RETURN(const bool row, statement.Step());
    if (!row) return first;
    if (fresh) first = statement.Bytes(0);
    fresh = false;
  }
}

absl::StatusOr<SqliteStatement> SqliteDatabase::Prepare(const std::string& sql) const {
  SqliteStatement statement;
  sqlite3_stmt* raw = nullptr;
  const int rc =
      sqlite3_prepare_v2(database_.get(), sql.data(), static_cast<int>(sql.size()), &raw, nullptr);
  if (rc != SQLITE_OK) return Failure(rc);
  statement.statement_.reset(raw);
  statement.database_ = this;
  return statement;
}

absl::Status SqliteDatabase::CopyTo(const SqliteDatabase& to) const {
  sqlite3_backup* const copy =
      sqlite3_backup_init(to.database_.get(), "main", database_.get(), "main");
  if (copy == nullptr) return to.Failure(sqlite3_extended_errcode(to.database_.get()));
  // All at once: a reader of a write-ahead log hinders nobody.
  const int rc = sqlite3_backup_step(copy, -1);
  absl::Status failure;
  if (rc != SQLITE_DONE) failure = (IsOfReading(rc) ? *this : to).Failure(rc);
  sqlite3_backup_finish(copy);
  return failure;
}

void SqliteDatabase::Rollback() const {
  if (sqlite3_get_autocommit(database_.get()) != 0) return;  // SQLite has ended it already
  sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
}

absl::Status SqliteDatabase::Failure(int rc) const {
  const int error = LastError(database_.get());
  const std::string said = absl::StrCat("'", path_, "': ", sqlite3_errstr(rc),
                                        error == 0 ? "" : absl::StrCat(" (", strerror(error), ")"));
  switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(
          absl::StrCat(said, "; the file is damaged: put a copy back, or move it and its '-wal' ",
                       "away to begin anew without the jobs that it holds"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(absl::StrCat(
          "'", path_, "' is used by another program, or by an older coordinator: stop ",
          "that one or use another folder"));
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(absl::StrCat(said, WhatToDo(error)));
    case SQLITE_NOMEM:
      return absl::ResourceExhaustedError(said);
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      if (IsFull(error)) return absl::ResourceExhaustedError(said);
      return absl::FailedPreconditionError(
          absl::StrCat(said, "; it and its folder must be writable"));
    case SQLITE_IOERR:
      if (IsFull(error)) {
        return absl::ResourceExhaustedError(absl::StrCat(said, WhatToDo(error)));
      }
      return absl::UnavailableError(said);
    default:
      return absl::InternalError(said);
  }
}

}  // namespace lockstep::coordinator
