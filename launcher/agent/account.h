// SPDX-License-Identifier: Apache-2.0
// The user of this host as whom a job runs, where the agent is root's and runs jobs as those who
// submitted them.
// Thread-safety: FindAccount is thread-safe; AsAccount and what asks for it belong to their thread.
#ifndef LOCKSTEP_LAUNCHER_AGENT_ACCOUNT_H_
#define LOCKSTEP_LAUNCHER_AGENT_ACCOUNT_H_

#include <pwd.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::launcher {

struct Account {
  std::string name;
  std::string home;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // with gid
};

// Of getpwnam_r(3).
using LookUpUser = int (*)(const char* name, passwd* entry, char* buffer, size_t size,
                           passwd** found);

// The account of `user` on this host. `look_up` is another than the system's in tests. Blocks for
// the host's name service. Errors: FailedPrecondition (the host has no such user; it is root, or
// another name of it, and `root_too` is false); Unavailable (the name service cannot say).
absl::StatusOr<Account> FindAccount(const std::string& user, bool root_too,
                                    LookUpUser look_up = ::getpwnam_r);

// Checks that this process may run jobs as other users than its own: tries, on a thread of its own,
// what AsAccount and the start of a job's processes do. Blocks until that thread has ended. Errors:
// FailedPrecondition, with the capability that is missing (it is not root's, or root has not all
// rights here: a container, a service's unit); those of capget(2).
absl::Status CheckRunsAsUsers();

// From Become until its end this thread makes and opens files as an account does: what it makes is
// theirs, and what they may not touch it cannot.
class AsAccount {
 public:
  AsAccount() = default;
  ~AsAccount();
  AsAccount(const AsAccount&) = delete;
  AsAccount& operator=(const AsAccount&) = delete;
  // Once. Without an account nothing changes. Errors: FailedPrecondition where this process may not
  // (CheckRunsAsUsers); the thread is then to open nothing until this object's end.
  [[nodiscard]] absl::Status Become(const std::optional<Account>& account);

 private:
  bool changed_ = false;
  std::vector<gid_t> groups_;  // before
};

// As whom this thread makes and opens files.
uid_t FileUser();

// Returns whether an AsAccount of this thread has an account: then what it finds where others can
// make files has to be the account's.
bool IsAsAccount();

// Returns whether the account's new files in `folder` are its own there. They are not where a file
// system gives all files to one user (SMB, NFS with all_squash): an owner says nothing then. Makes
// a file for a moment; true where it may not.
bool KeepsOwners(int folder);

// Checks that `fd`, opened by the name `shown`, is the account's; does nothing without one, nor
// where no owners are kept in `folder`, in which `fd` is, or which it is. Errors:
// FailedPrecondition, with the name and whose it is; those of fstat(2).
absl::Status CheckOwner(int fd, const std::string& shown, int folder);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_AGENT_ACCOUNT_H_
