// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/identity.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/durable_file.h"
#include "common/status.h"
#include "launcher/agent/host.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kLongestId = 255;

// Returns what a file of a line or two holds; empty when it is not there or cannot be read.
std::string ReadLine(int fd) {
  char buffer[512];
  const ssize_t n = ::pread(fd, buffer, sizeof(buffer), 0);
  std::string text(buffer, n > 0 ? static_cast<size_t>(n) : 0);
  text = text.substr(0, text.find('\n'));
  absl::StripAsciiWhitespace(&text);
  return text;
}

absl::StatusOr<UniqueFd> Lock(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/lock");
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) {
    return ErrnoStatus(errno, absl::StrCat("cannot open ", path,
                                           " (--state-dir names a folder that you may write to)"));
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("cannot lock ", path));
    const std::string pid = ReadLine(fd.get());
    return absl::FailedPreconditionError(
        absl::StrCat("another agent", pid.empty() ? "" : absl::StrCat(" (process ", pid, ")"),
                     " runs with the state folder ", folder,
                     "; to run a second one on this host, give it a folder of its own with "
                     "--state-dir"));
  }
  // For the message above: a full disk is no reason to leave the node's workers alone.
  const std::string pid = absl::StrCat(::getpid(), "\n");
  (void)!::ftruncate(fd.get(), 0);
  (void)!::pwrite(fd.get(), pid.data(), pid.size(), 0);
  return fd;
}

}  // namespace

bool IsPlainName(const std::string& text) {
  return !text.empty() && text.size() <= kLongestId && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

absl::StatusOr<std::string> DefaultStateFolder(const std::string& host, bool root,
                                               const std::function<std::string(const char*)>& env) {
  std::string base;
  if (const std::string state = env("XDG_STATE_HOME"); !state.empty() && state[0] == '/') {
    base = absl::StrCat(state, "/lockstep");
  } else if (root) {
    base = "/var/lib/lockstep";
  } else if (const std::string home = env("HOME"); !home.empty() && home[0] == '/') {
    base = absl::StrCat(home, "/.local/state/lockstep");
  } else {
    return absl::FailedPreconditionError(
        "there is no HOME for the agent's state folder: name one with --state-dir");
  }
  return absl::StrCat(base, "/agent-", host);
}

absl::StatusOr<NodeIdentity> OpenNodeIdentity(const std::string& folder, const std::string& host) {
  const bool was_there = ::access(folder.c_str(), F_OK) == 0;
  LS_RETURN_IF_ERROR(
      Annotate(CreateFolders(folder), "the agent's state folder (--state-dir names another one)"));
  if (!was_there) ::chmod(folder.c_str(), 0700);
  NodeIdentity identity;
  identity.file = absl::StrCat(folder, "/node-id");
  LS_ASSIGN_OR_RETURN(identity.lock, Lock(folder));
  UniqueFd file(::open(identity.file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.valid()) {
    identity.node_id = ReadLine(file.get());
    if (IsPlainName(identity.node_id)) return identity;
    return absl::FailedPreconditionError(absl::StrCat("there is no node id in ", identity.file,
                                                      ": remove it, and a new one is made"));
  }
  if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("cannot read ", identity.file));
  identity.node_id = absl::StrCat(host, "-", RandomId());
  LS_RETURN_IF_ERROR(WriteFileDurably(identity.file, absl::StrCat(identity.node_id, "\n")));
  return identity;
}

}  // namespace lockstep::launcher
