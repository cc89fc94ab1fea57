// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite_store.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/durable_file.h"
#include "common/fd.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "coordinator/store/sqlite.h"

namespace lockstep::coordinator {
namespace {

constexpr int kBusyMillis = 500;
constexpr int64_t kApplicationId = 0x4c4b5354;  // tells our files from others
constexpr int64_t kVersion = 1;                 // of the tables
constexpr const char* kMakeTables =
    "CREATE TABLE rows (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL, "
    "hash INTEGER NOT NULL) WITHOUT ROWID";

// FNV-1a. SQLite notices damaged pages by their structure alone, so rows carry a hash of their own.
int64_t HashOf(const std::string& key, const std::string& value) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto take = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const char c : key) take(static_cast<unsigned char>(c));
  take(0);
  for (const char c : value) take(static_cast<unsigned char>(c));
  return static_cast<int64_t>(hash);
}

// Checks whether the file is a journal, or empty.
absl::Status CheckKind(const SqliteDatabase& database) {
  const std::string& path = database.path();
  LS_ASSIGN_OR_RETURN(const std::string tables, database.Ask("SELECT count(*) FROM sqlite_master"));
  if (tables == "0") return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(const std::string id, database.Ask("PRAGMA application_id"));
  if (id != absl::StrCat(kApplicationId)) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' is a database of another program; use another folder"));
  }
  LS_ASSIGN_OR_RETURN(const std::string version, database.Ask("PRAGMA user_version"));
  if (version != absl::StrCat(kVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' has version ", version, " and this coordinator knows version ",
                     kVersion, "; start the version that wrote it"));
  }
  return absl::OkStatus();
}

absl::Status MakeTables(const SqliteDatabase& database) {
  LS_RETURN_IF_ERROR(database.Run("BEGIN IMMEDIATE"));
  LS_RETURN_IF_ERROR(database.Run(kMakeTables));
  LS_RETURN_IF_ERROR(database.Run(absl::StrCat("PRAGMA application_id=", kApplicationId)));
  LS_RETURN_IF_ERROR(database.Run(absl::StrCat("PRAGMA user_version=", kVersion)));
  return database.Run("COMMIT");
}

// Returns all rows of `database`, which is `origin` or a copy of it. Errors: DataLoss, naming the
// row and `origin`.
absl::StatusOr<std::vector<StoredRow>> ReadRows(const SqliteDatabase& database,
                                                const SqliteDatabase& origin) {
  LS_ASSIGN_OR_RETURN(SqliteStatement all,
                      database.Prepare("SELECT key, value, revision, hash FROM rows ORDER BY key"));
  std::vector<StoredRow> rows;
  while (true) {
    LS_ASSIGN_OR_RETURN(const bool there, all.Step());
    if (!there) return rows;
    StoredRow& row = rows.emplace_back();
    row = {all.Bytes(0), all.Bytes(1), all.Int(2)};
    if (all.Int(3) != HashOf(row.key, row.value)) {
      return Annotate(origin.Failure(SQLITE_CORRUPT), absl::StrCat("row '", row.key, "'"));
    }
  }
}

// The same of a journal of which nothing was looked at yet.
absl::StatusOr<std::vector<StoredRow>> ReadWhole(const SqliteDatabase& database,
                                                 const SqliteDatabase& origin) {
  LS_ASSIGN_OR_RETURN(const std::string tables, database.Ask("SELECT count(*) FROM sqlite_master"));
  if (tables == "0") return absl::DataLossError(absl::StrCat("'", origin.path(), "' is empty"));
  LS_ASSIGN_OR_RETURN(const std::string check, database.Ask("PRAGMA quick_check(1)"));
  if (check != "ok") return origin.Failure(SQLITE_CORRUPT);
  return ReadRows(database, origin);
}

class SqliteStore : public Store {
 public:
  SqliteStore(UniqueFd lock, std::unique_ptr<SqliteDatabase> database)
      : lock_(std::move(lock)), database_(std::move(database)) {}

  // Takes the lock, checks what is there, and prepares the rest.
  absl::Status Init(bool sync) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::vector<StoredRow>> GetAll() override {
    absl::MutexLock lock(&mu_);
    return ReadRows(*database_, *database_);
  }

  absl::StatusOr<int64_t> PutBatch(absl::Span<const Put> rows) override {
    absl::MutexLock lock(&mu_);
    if (rows.empty()) return revision_;
    LS_RETURN_IF_ERROR(CheckKeys(rows));
    const absl::Status written = Write(rows);
    if (!written.ok()) {
      get_.Reset();
      put_.Reset();
      erase_.Reset();
      database_->Rollback();
      return written;
    }
    return ++revision_;
  }

 private:
  absl::Status Write(absl::Span<const Put> rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Compare(const Put& put) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UniqueFd lock_;
  absl::Mutex mu_;
  const std::unique_ptr<SqliteDatabase> database_ ABSL_PT_GUARDED_BY(mu_);
  int64_t revision_ ABSL_GUARDED_BY(mu_) = 0;  // the newest batch
  SqliteStatement get_ ABSL_GUARDED_BY(mu_);
  SqliteStatement put_ ABSL_GUARDED_BY(mu_);
  SqliteStatement erase_ ABSL_GUARDED_BY(mu_);
};

absl::Status SqliteStore::Init(bool sync) {
  absl::MutexLock lock(&mu_);
  LS_RETURN_IF_ERROR(database_->Run(absl::StrCat("PRAGMA synchronous=", sync ? "FULL" : "OFF")));
  LS_RETURN_IF_ERROR(database_->Run("BEGIN IMMEDIATE"));
  absl::Status kind = CheckKind(*database_);
  if (!kind.ok()) {
    database_->Rollback();
    return kind;
  }
  LS_RETURN_IF_ERROR(database_->Run("COMMIT"));
  LS_ASSIGN_OR_RETURN(const std::string mode, database_->Ask("PRAGMA journal_mode=WAL"));
  if (mode != "wal") {
    return absl::FailedPreconditionError(absl::StrCat(
        "'", database_->path(), "': the file system cannot hold it; use a local disk"));
  }
  LS_ASSIGN_OR_RETURN(const std::string tables,
                      database_->Ask("SELECT count(*) FROM sqlite_master"));
  if (tables == "0") {
    LS_RETURN_IF_ERROR(MakeTables(*database_));
  } else {
    LS_ASSIGN_OR_RETURN(const std::string check, database_->Ask("PRAGMA quick_check(1)"));
    if (check != "ok") return database_->Failure(SQLITE_CORRUPT);
  }
  LS_ASSIGN_OR_RETURN(get_, database_->Prepare("SELECT revision FROM rows WHERE key=?1"));
  LS_ASSIGN_OR_RETURN(
      put_, database_->Prepare("INSERT INTO rows VALUES(?1,?2,?3,?4) ON CONFLICT(key) DO UPDATE "
                               "SET value=?2, revision=?3, hash=?4"));
  LS_ASSIGN_OR_RETURN(erase_, database_->Prepare("DELETE FROM rows WHERE key=?1"));
  LS_ASSIGN_OR_RETURN(SqliteStatement newest,
                      database_->Prepare("SELECT coalesce(max(revision), 0) FROM rows"));
  LS_RETURN_IF_ERROR(newest.Step().status());
  revision_ = newest.Int(0);
  return absl::OkStatus();
}

absl::Status SqliteStore::Compare(const Put& put) {
  if (put.expected_revision < 0) return absl::OkStatus();
  get_.BindText(1, put.key);
  LS_ASSIGN_OR_RETURN(const bool there, get_.Step());
  const int64_t revision = there ? get_.Int(0) : 0;
  get_.Reset();
  if (revision == put.expected_revision) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("row ", put.key, " has revision ", revision, ", not ", put.expected_revision));
}

absl::Status SqliteStore::Write(absl::Span<const Put> rows) {
  LS_RETURN_IF_ERROR(database_->Run("BEGIN IMMEDIATE"));
  for (const Put& put : rows) LS_RETURN_IF_ERROR(Compare(put));
  for (const Put& put : rows) {
    if (put.erase) {
      erase_.BindText(1, put.key);
      LS_RETURN_IF_ERROR(erase_.Step().status());
      erase_.Reset();
      continue;
    }
    put_.BindText(1, put.key);
    put_.BindBlob(2, put.value);
    put_.BindInt(3, revision_ + 1);
    put_.BindInt(4, HashOf(put.key, put.value));
    LS_RETURN_IF_ERROR(put_.Step().status());
    put_.Reset();
  }
  return database_->Run("COMMIT");
}

// The folder and an empty file, so that what hinders is said in the system's words.
absl::Status MakeFile(const std::string& folder, const std::string& path) {
  const bool fresh = ::access(folder.c_str(), F_OK) != 0;
  LS_RETURN_IF_ERROR(CreateFolders(folder));
  if (fresh && ::chmod(folder.c_str(), 0700) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot make '", folder, "' private"));
  }
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("cannot open the journal '", path, "'"));
  return absl::OkStatus();
}

// A lock of this process on the folder's database. SQLite's own would keep those away, too, who
// only read (a backup).
absl::StatusOr<UniqueFd> Lock(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kLockFile);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid())
    return ErrnoStatus(errno, absl::StrCat("cannot open the journal's '", path, "'"));
  const absl::Time give_up = Clock::Real()->Now() + absl::Milliseconds(kBusyMillis);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoStatus(errno, absl::StrCat("cannot lock '", path, "'"));
    }
    if (Clock::Real()->Now() < give_up) {
      Clock::Real()->Sleep(absl::Milliseconds(10));
      continue;
    }
    char holder[32] = {};
    const ssize_t n = ::pread(fd.get(), holder, sizeof(holder) - 1, 0);
    return absl::FailedPreconditionError(
        absl::StrCat("'", folder, "/", kJournalFile, "' is used by another coordinator",
                     n > 0 ? absl::StrCat(" (process ", holder, ")") : "",
                     ": stop that one or use another folder"));
  }
  // Of use to people alone, so a full disk does not matter.
  const std::string own = absl::StrCat(::getpid());
  if (::ftruncate(fd.get(), 0) == 0) {
    [[maybe_unused]] const ssize_t n = ::pwrite(fd.get(), own.data(), own.size(), 0);
  }
  return fd;
}

// Makes `file` of what `fill` puts into a new database: it appears whole or not at all, and nothing
// is replaced.
absl::Status MakeNewFile(const std::string& file,
                         const std::function<absl::Status(SqliteDatabase&)>& fill) {
  absl::Status exists = absl::AlreadyExistsError(
      absl::StrCat("'", file, "' is there already: name another file, or remove it"));
  if (::access(file.c_str(), F_OK) == 0) return exists;
  const std::string part = absl::StrCat(file, ".", RandomHex(4), ".part");
  UniqueFd fd(::open(part.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("cannot make '", part, "'"));
  const absl::Cleanup remove = [&] { ::unlink(part.c_str()); };
  {
    LS_ASSIGN_OR_RETURN(const auto database, SqliteDatabase::Open(part, kBusyMillis));
    LS_RETURN_IF_ERROR(fill(*database));
    LS_RETURN_IF_ERROR(database->Run("PRAGMA journal_mode=DELETE"));
  }
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("cannot save '", part, "'"));
  if (::link(part.c_str(), file.c_str()) != 0) {
    if (errno == EEXIST) return exists;
    return ErrnoStatus(errno, absl::StrCat("cannot make '", file, "'"));
  }
  const size_t slash = file.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : file.substr(0, slash + 1);
  const UniqueFd entry(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!entry.valid() || ::fsync(entry.get()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot save '", file, "' in its folder"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoredRow>> ReadWholeJournal(const std::string& file) {
  LS_ASSIGN_OR_RETURN(const auto database,
                      SqliteDatabase::Open(file, kBusyMillis, /*read_only=*/true));
  LS_RETURN_IF_ERROR(CheckKind(*database));
  return ReadWhole(*database, *database);
}

}  // namespace

absl::Status CopySqliteStore(const std::string& folder, const std::string& file) {
  const std::string path = absl::StrCat(folder, "/", kJournalFile);
  if (::access(path.c_str(), F_OK) != 0) return ErrnoStatus(errno, absl::StrCat("'", path, "'"));
  LS_ASSIGN_OR_RETURN(const auto database, SqliteDatabase::Open(path, kBusyMillis));
  LS_RETURN_IF_ERROR(CheckKind(*database));
  return MakeNewFile(file, [&](SqliteDatabase& copy) -> absl::Status {
    LS_RETURN_IF_ERROR(database->CopyTo(copy));
    return ReadWhole(copy, *database).status();  // pages are copied as they are
  });
}

absl::Status WriteJournalFile(const std::string& file, absl::Span<const StoredRow> rows) {
  return MakeNewFile(file, [&](SqliteDatabase& database) -> absl::Status {
    LS_RETURN_IF_ERROR(MakeTables(database));
    LS_RETURN_IF_ERROR(database.Run("BEGIN IMMEDIATE"));
    LS_ASSIGN_OR_RETURN(SqliteStatement put,
                        database.Prepare("INSERT INTO rows VALUES(?1,?2,?3,?4)"));
    for (const StoredRow& row : rows) {
      put.BindText(1, row.key);
      put.BindBlob(2, row.value);
      put.BindInt(3, row.revision);
      put.BindInt(4, HashOf(row.key, row.value));
      LS_RETURN_IF_ERROR(put.Step().status());
      put.Reset();
    }
    return database.Run("COMMIT");
  });
}

absl::StatusOr<std::vector<StoredRow>> ReadJournalFile(const std::string& file) {
  if (::access(file.c_str(), R_OK) != 0) return ErrnoStatus(errno, absl::StrCat("'", file, "'"));
  absl::StatusOr<std::vector<StoredRow>> rows = ReadWholeJournal(file);
  if (!absl::IsDataLoss(rows.status())) return rows;
  return absl::DataLossError(absl::StrCat("'", file,
                                          "' is no copy of a journal, or damaged or cut ",
                                          "off: nothing of it is used; take another copy"));
}

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteOptions& options) {
  const std::string path = absl::StrCat(options.folder, "/", kJournalFile);
  LS_RETURN_IF_ERROR(MakeFile(options.folder, path));
  LS_ASSIGN_OR_RETURN(UniqueFd lock, Lock(options.folder));
  LS_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDatabase> database,
                      SqliteDatabase::Open(path, kBusyMillis));
  auto store = std::make_unique<SqliteStore>(std::move(lock), std::move(database));
  LS_RETURN_IF_ERROR(store->Init(options.sync));
  return store;
}

}  // namespace lockstep::coordinator
