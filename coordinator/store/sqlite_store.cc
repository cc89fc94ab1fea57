// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite_store.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/durable_file.h"
#include "common/fd.h"
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

class SqliteStore : public Store {
 public:
  explicit SqliteStore(std::unique_ptr<SqliteDatabase> database) : database_(std::move(database)) {}

  // Takes the lock, checks what is there, and prepares the rest.
  absl::Status Init(bool sync) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::vector<StoredRow>> GetAll() override {
    absl::MutexLock lock(&mu_);
    return ReadAll();
  }

  absl::StatusOr<int64_t> PutBatch(absl::Span<const Put> rows) override {
    absl::MutexLock lock(&mu_);
    if (rows.empty()) return revision_;
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
  absl::Status CheckKind() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<StoredRow>> ReadAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Write(absl::Span<const Put> rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Compare(const Put& put) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  const std::unique_ptr<SqliteDatabase> database_ ABSL_PT_GUARDED_BY(mu_);
  int64_t revision_ ABSL_GUARDED_BY(mu_) = 0;  // the newest batch
  SqliteStatement get_ ABSL_GUARDED_BY(mu_);
  SqliteStatement put_ ABSL_GUARDED_BY(mu_);
  SqliteStatement erase_ ABSL_GUARDED_BY(mu_);
};

absl::Status SqliteStore::Init(bool sync) {
  absl::MutexLock lock(&mu_);
  // Exclusive before WAL: the lock is then kept, and there is no shared index beside the file.
  LS_RETURN_IF_ERROR(database_->Run(absl::StrCat("PRAGMA synchronous=", sync ? "FULL" : "OFF")));
  LS_RETURN_IF_ERROR(database_->Run("PRAGMA locking_mode=EXCLUSIVE"));
  LS_RETURN_IF_ERROR(database_->Run("BEGIN IMMEDIATE"));
  absl::Status kind = CheckKind();
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
    LS_RETURN_IF_ERROR(database_->Run("BEGIN IMMEDIATE"));
    LS_RETURN_IF_ERROR(database_->Run(kMakeTables));
    LS_RETURN_IF_ERROR(database_->Run(absl::StrCat("PRAGMA application_id=", kApplicationId)));
    LS_RETURN_IF_ERROR(database_->Run(absl::StrCat("PRAGMA user_version=", kVersion)));
    LS_RETURN_IF_ERROR(database_->Run("COMMIT"));
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

// Whether the file is a journal, or empty.
absl::Status SqliteStore::CheckKind() const {
  const std::string& path = database_->path();
  LS_ASSIGN_OR_RETURN(const std::string tables,
                      database_->Ask("SELECT count(*) FROM sqlite_master"));
  if (tables == "0") return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(const std::string id, database_->Ask("PRAGMA application_id"));
  if (id != absl::StrCat(kApplicationId)) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' is a database of another program; use another folder"));
  }
  LS_ASSIGN_OR_RETURN(const std::string version, database_->Ask("PRAGMA user_version"));
  if (version != absl::StrCat(kVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' has version ", version, " and this coordinator knows version ",
                     kVersion, "; start the version that wrote it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoredRow>> SqliteStore::ReadAll() {
  LS_ASSIGN_OR_RETURN(
      SqliteStatement all,
      database_->Prepare("SELECT key, value, revision, hash FROM rows ORDER BY key"));
  std::vector<StoredRow> rows;
  while (true) {
    LS_ASSIGN_OR_RETURN(const bool there, all.Step());
    if (!there) return rows;
    StoredRow& row = rows.emplace_back();
    row = {all.Bytes(0), all.Bytes(1), all.Int(2)};
    if (all.Int(3) != HashOf(row.key, row.value)) {
      return Annotate(database_->Failure(SQLITE_CORRUPT), absl::StrCat("row '", row.key, "'"));
    }
  }
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

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteOptions& options) {
  const std::string path = absl::StrCat(options.folder, "/", kJournalFile);
  LS_RETURN_IF_ERROR(MakeFile(options.folder, path));
  LS_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDatabase> database,
                      SqliteDatabase::Open(path, kBusyMillis));
  auto store = std::make_unique<SqliteStore>(std::move(database));
  LS_RETURN_IF_ERROR(store->Init(options.sync));
  return store;
}

}  // namespace lockstep::coordinator
