// SPDX-License-Identifier: Apache-2.0
#include "coordinator/backup_verb.h"

#include <iostream>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/status.h"
#include "coordinator/service/beginning.h"
#include "coordinator/service/cluster_files.h"
#include "coordinator/service/revocations.h"
#include "coordinator/store/etcd/client.h"
#include "coordinator/store/etcd/election.h"
#include "coordinator/store/etcd/etcd_store.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store_flags.h"

namespace lockstep::coordinator {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

struct Arguments {
  std::string file;
  std::vector<std::string> audits;
  StoreFlags store;
};

enum class Verb { kBackup, kRestore };

// Errors: InvalidArgument.
absl::StatusOr<Arguments> Parse(const std::vector<std::string>& words, Verb verb) {
  Arguments arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (!absl::ConsumePrefix(&word, "--")) {
      if (!arguments.file.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", words[i], "'"));
      }
      arguments.file = words[i];
      continue;
    }
    const size_t equals = word.find('=');
    std::string name(word.substr(0, equals));
    for (char& c : name) c = c == '_' ? '-' : c;
    const bool audit = verb == Verb::kRestore && name == "audit";
    if (!audit && !IsStoreFlag(name))
      return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name));
    if (!audit && !StoreFlagTakesValue(name)) {
      if (equals != absl::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      }
      LS_RETURN_IF_ERROR(SetStoreFlag(name, "", arguments.store));
      continue;
    }
    if (equals == absl::string_view::npos && ++i == words.size()) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
    }
    if (equals != absl::string_view::npos) {
      LS_RETURN_IF_ERROR(CheckAttached(name, word.substr(equals + 1)));
    }
    const absl::string_view value =
        equals == absl::string_view::npos ? absl::string_view(words[i]) : word.substr(equals + 1);
    if (audit) {
      arguments.audits.emplace_back(value);
    } else {
      LS_RETURN_IF_ERROR(SetStoreFlag(name, value, arguments.store));
    }
  }
  if (arguments.file.empty()) return absl::InvalidArgumentError("a FILE is needed");
  if (arguments.store.address.empty() && arguments.store.state.folder.empty()) {
    return absl::InvalidArgumentError(
        "--state-dir DIR or --store ADDRESS says where the journal is");
  }
  return arguments;
}

int Usage(const absl::Status& status, Verb verb) {
  std::cerr << "coordinator: " << status.message() << "\n\nUsage: coordinator "
            << (verb == Verb::kBackup ? "backup FILE" : "restore FILE [--audit FILE]...")
            << " [--state-dir DIR | --store ADDRESS]   (flags as of the coordinator)\n";
  return 2;
}

int Fail(const absl::Status& status) {
  std::cerr << "coordinator: " << status.message() << "\n";
  return 1;
}

absl::Status Backup(const Arguments& arguments) {
  if (arguments.store.address.empty()) {
    return CopySqliteStore(arguments.store.state.folder, arguments.file);
  }
  LS_ASSIGN_OR_RETURN(const EtcdOptions options, EtcdOptionsOf(arguments.store));
  EtcdClient etcd(options);
  LS_ASSIGN_OR_RETURN(const std::vector<StoredRow> rows,
                      ReadEtcdRows(&etcd, EtcdLayout{options.prefix}, kPatience));
  if (rows.empty()) {
    return absl::NotFoundError(absl::StrCat("etcd holds no journal below ", options.prefix));
  }
  return WriteJournalFile(arguments.file, rows);
}

// One batch, so that all of it is there or nothing.
absl::Status Fill(Store& store, const std::vector<StoredRow>& rows) {
  LS_ASSIGN_OR_RETURN(const std::vector<StoredRow> there, store.GetAll());
  if (!there.empty()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "there is a journal of ", there.size(), " rows, which stays as it is: move it away (",
        kJournalFile, " with its -wal; in etcd the prefix), or name another place"));
  }
  std::vector<Put> puts;
  for (const StoredRow& row : rows) puts.push_back({row.key, row.value});
  return store.PutBatch(puts).status();
}

absl::Status FillEtcd(const StoreFlags& flags, const std::vector<StoredRow>& rows) {
  LS_ASSIGN_OR_RETURN(const EtcdOptions options, EtcdOptionsOf(flags));
  EtcdClient etcd(options);
  absl::Notification won;
  std::string leader;
  absl::Notification taken;
  Election::Callbacks callbacks;
  callbacks.on_won = [&] { won.Notify(); };
  callbacks.on_leader = [&](const std::string& address) {
    if (address.empty() || taken.HasBeenNotified() || address == "coordinator restore") return;
    leader = address;
    taken.Notify();
  };
  Clock* const clock = Clock::Real();
  Election election(&etcd, clock, EtcdLayout{options.prefix}, "coordinator restore", options.lease,
                    std::move(callbacks));
  const absl::Time deadline = clock->Now() + kPatience;
  while (!won.HasBeenNotified() && !taken.HasBeenNotified() && clock->Now() < deadline) {
    clock->Sleep(absl::Milliseconds(20));
  }
  if (taken.HasBeenNotified()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a coordinator leads (", leader, "): stop all of them first"));
  }
  if (!won.HasBeenNotified()) {
    return absl::UnavailableError(absl::StrCat("etcd (", etcd.Name(), ") does not answer"));
  }
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, OpenEtcdStore(&election));
  return Fill(*store, rows);
}

// What tokens are worth after a restore. `removed`: by the audits that were given.
void SayTokens(const Arguments& arguments, int removed) {
  if (arguments.audits.empty()) {
    std::cerr << "tokens that were revoked since the backup are taken again, and those made since "
                 "are unknown: compare `launcher token list` with audit.jsonl, or restore with "
                 "--audit FILE, which leaves out what that file says was revoked\n";
    return;
  }
  std::cerr << "left out " << removed << (removed == 1 ? " token" : " tokens")
            << " that the audit says were revoked; tokens made since the backup are unknown\n";
}

absl::Status Restore(const Arguments& arguments) {
  std::set<std::string> revoked;
  for (const std::string& audit : arguments.audits) {
    LS_ASSIGN_OR_RETURN(std::set<std::string> ids, RevokedTokens(audit));
    revoked.merge(ids);
  }
  LS_ASSIGN_OR_RETURN(std::vector<StoredRow> rows, ReadJournalFile(arguments.file));
  if (absl::Status made = MakeRestored(rows); !made.ok()) {
    return Annotate(made, absl::StrCat("'", arguments.file, "'"));
  }
  const int removed = RemoveTokens(revoked, rows);
  if (!arguments.store.address.empty()) {
    LS_RETURN_IF_ERROR(FillEtcd(arguments.store, rows));
  } else {
    LS_RETURN_IF_ERROR(MakeStateFolder(arguments.store.state.folder, "restore"));
    LS_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, OpenSqliteStore(arguments.store.state));
    LS_RETURN_IF_ERROR(Fill(*store, rows));
  }
  SayTokens(arguments, removed);
  return absl::OkStatus();
}

}  // namespace

int RunBackup(const std::vector<std::string>& words) {
  const absl::StatusOr<Arguments> arguments = Parse(words, Verb::kBackup);
  if (!arguments.ok()) return Usage(arguments.status(), Verb::kBackup);
  if (absl::Status done = Backup(*arguments); !done.ok()) return Fail(done);
  return 0;
}

int RunRestore(const std::vector<std::string>& words) {
  const absl::StatusOr<Arguments> arguments = Parse(words, Verb::kRestore);
  if (!arguments.ok()) return Usage(arguments.status(), Verb::kRestore);
  if (absl::Status done = Restore(*arguments); !done.ok()) return Fail(done);
  return 0;
}

}  // namespace lockstep::coordinator
