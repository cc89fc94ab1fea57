// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/account.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fd.h"
#include "common/printable.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "common/thread.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMostEntryBytes = 1 << 20;
constexpr int kMostGroups = 65536;  // Linux's NGROUPS_MAX
constexpr uid_t kNobodys = static_cast<uid_t>(-1);
constexpr gid_t kNobodysGroup = static_cast<gid_t>(-1);
constexpr uid_t kAnother = 65534;  // any user but root, and a group of that number

thread_local bool is_as_account = false;

absl::Status MayNot(const char* call, const char* capability, int error = EPERM) {
  return absl::FailedPreconditionError(absl::StrCat(
      "this process may not run jobs as their users (--as-users): ", call, ": ",
      std::generic_category().message(error),
      error == EINVAL
          ? std::string("; the user namespace of this container does not have that user or group")
          : absl::StrCat("; root needs ", capability,
                         " for it, which a container, and a unit by CapabilityBoundingSet or "
                         "SystemCallFilter, may withhold")));
}

// Of this thread alone, where setgroups(3) changes all.
bool SetThreadGroups(const std::vector<gid_t>& groups) {
  return ::syscall(SYS_setgroups, groups.size(), groups.data()) == 0;
}

gid_t FileGroup() { return static_cast<gid_t>(::setfsgid(kNobodysGroup)); }

// Changes this thread for good.
absl::Status BecomeAnother() {
  {
    AsAccount as;
    LS_RETURN_IF_ERROR(as.Become(Account{"", "/", kAnother, kAnother, {kAnother}}));
  }
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, sets) != 0) return ErrnoStatus(errno, "capget");
  if ((sets[CAP_TO_INDEX(CAP_KILL)].effective & CAP_TO_MASK(CAP_KILL)) == 0) {
    return MayNot("kill", "CAP_KILL");
  }
  // As the spawner's children do.
  if (::syscall(SYS_setresgid, kAnother, kAnother, kAnother) != 0) {
    return MayNot("setresgid", "CAP_SETGID", errno);
  }
  if (::syscall(SYS_setresuid, kAnother, kAnother, kAnother) != 0) {
    return MayNot("setresuid", "CAP_SETUID", errno);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Account> FindAccount(const std::string& user, bool root_too, LookUpUser look_up) {
  passwd entry = {};
  passwd* found = nullptr;
  std::vector<char> buffer(16 << 10);
  int error = 0;
  while (!user.empty()) {
    error = look_up(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (error == ERANGE && buffer.size() < kMostEntryBytes) {
      buffer.resize(2 * buffer.size());
    } else if (error != EINTR) {
      break;
    }
  }
  if (error != 0 && error != ENOENT && error != ESRCH) {
    return absl::UnavailableError(
        absl::StrCat("this host's name service cannot say who '", Printable(user),
                     "' is, as whom the job would run: ", std::generic_category().message(error)));
  }
  if (found == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this host has no user '", Printable(user),
                     "', as whom the job would run (launcher join --as-users)"));
  }
  if (found->pw_uid == 0 && !root_too) {
    return absl::FailedPreconditionError(
        absl::StrCat("a job of '", Printable(user),
                     "' would run as root, which this node's agent does not allow (--allow-root)"));
  }
  Account account{found->pw_name, found->pw_dir, found->pw_uid, found->pw_gid, {}};
  int count = 64;
  account.groups.resize(64);
  while (::getgrouplist(user.c_str(), account.gid, account.groups.data(), &count) < 0) {
    if (count > kMostGroups) return absl::FailedPreconditionError("the user has too many groups");
    account.groups.resize(static_cast<size_t>(count));
  }
  account.groups.resize(static_cast<size_t>(count));
  return account;
}

absl::Status CheckRunsAsUsers() {
  if (::geteuid() != 0) {
    return absl::FailedPreconditionError(
        "--as-users needs root: nobody else can start processes of other users");
  }
  absl::Status status;
  Thread("as-users", [&status] { status = BecomeAnother(); }).Join();
  return status;
}

absl::Status AsAccount::Become(const std::optional<Account>& account) {
  if (!account.has_value()) return absl::OkStatus();
  const int count = ::getgroups(0, nullptr);
  groups_.resize(static_cast<size_t>(count));
  LS_CHECK_EQ(::getgroups(count, groups_.data()), count);
  if (!SetThreadGroups(account->groups)) return MayNot("setgroups", "CAP_SETGID", errno);
  changed_ = true;
  ::setfsgid(account->gid);
  if (FileGroup() != account->gid) return MayNot("setfsgid", "CAP_SETGID");
  ::setfsuid(account->uid);  // last: it takes root's rights over files away
  if (FileUser() != account->uid) return MayNot("setfsuid", "CAP_SETUID");
  is_as_account = true;
  return absl::OkStatus();
}

AsAccount::~AsAccount() {
  if (!changed_) return;
  ::setfsuid(::geteuid());
  ::setfsgid(::getegid());
  LS_CHECK(SetThreadGroups(groups_)) << "setgroups";
  LS_CHECK_EQ(FileUser(), ::geteuid()) << "setfsuid";
  is_as_account = false;
}

uid_t FileUser() { return static_cast<uid_t>(::setfsuid(kNobodys)); }

bool IsAsAccount() { return is_as_account; }

bool KeepsOwners(int folder) {
  const std::string name = absl::StrCat(".lockstep-owner-", RandomHex(8));
  const UniqueFd made(
      ::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  struct stat info {};
  if (!made.valid() || ::fstat(made.get(), &info) != 0) return true;
  ::unlinkat(folder, name.c_str(), 0);
  return info.st_uid == FileUser();
}

absl::Status CheckOwner(int fd, const std::string& shown, int folder) {
  struct stat info {};
  if (!IsAsAccount()) return absl::OkStatus();
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, shown);
  if (info.st_uid == FileUser() || !KeepsOwners(folder)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("'", shown, "' was made by user ", info.st_uid,
                                                    ": remove it, or submit the job again"));
}

}  // namespace lockstep::launcher
