// SPDX-License-Identifier: Apache-2.0
#include "coordinator/client/default_address.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "coordinator/client/token.h"

namespace lockstep::coordinator {
namespace {

constexpr char kSocket[] = "coordinator.sock";
// The path of a Unix socket has at most 107 characters, and some are for the name in the folder.
constexpr size_t kMaxFolder = 80;

struct Candidate {
  std::string folder;
  bool made;  // it may be made when it is missing
};

// Checks whether only `uid` can put things into the folder. `follow`: it may be a link to one.
absl::Status CheckOwn(const std::string& folder, uid_t uid, bool follow) {
  struct stat status;
  const int failed = follow ? ::stat(folder.c_str(), &status) : ::lstat(folder.c_str(), &status);
  if (failed != 0) return ErrnoStatus(errno, folder);
  if (!S_ISDIR(status.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(folder, " is no folder"));
  }
  if (status.st_uid != uid) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " belongs to user ", status.st_uid, ", not to ", uid));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("others can write in ", folder));
  }
  return absl::OkStatus();
}

// The folders to look at, in order; those that cannot be meant add why to `why_not`.
std::vector<Candidate> Candidates(const RuntimePlaces& places, std::vector<std::string>& why_not) {
  std::vector<Candidate> candidates;
  if (!places.xdg.empty()) {
    const absl::Status own = places.xdg[0] != '/'
                                 ? absl::FailedPreconditionError("XDG_RUNTIME_DIR is no full path")
                                 : CheckOwn(places.xdg, places.uid, /*follow=*/true);
    if (own.ok()) {
      candidates.push_back({absl::StrCat(places.xdg, "/lockstep"), true});
    } else {
      why_not.emplace_back(own.message());
    }
  }
  candidates.push_back({absl::StrCat(places.run, "/lockstep"), places.uid == 0});
  candidates.push_back({absl::StrCat(places.tmp, "/lockstep-", places.uid), true});
  std::erase_if(candidates, [&](const Candidate& candidate) {
    if (candidate.folder.size() <= kMaxFolder) return false;
    why_not.push_back(absl::StrCat(candidate.folder, " is too long for a socket's path"));
    return true;
  });
  return candidates;
}

absl::Status NoFolder(const std::vector<std::string>& why_not) {
  return absl::FailedPreconditionError(
      absl::StrCat("no runtime folder for the coordinator's socket can be used (",
                   absl::StrJoin(why_not, "; "), "): name an address, unix:/path"));
}

}  // namespace

RuntimePlaces RuntimePlaces::Here() {
  RuntimePlaces places;
  const char* xdg = ::getenv("XDG_RUNTIME_DIR");
  places.xdg = xdg == nullptr ? "" : xdg;
  places.uid = ::geteuid();
  return places;
}

absl::StatusOr<std::string> MakeRuntimeFolder(const RuntimePlaces& places) {
  std::vector<std::string> why_not;
  for (const auto& [folder, made] : Candidates(places, why_not)) {
    // The mode is right from the start whatever the umask, which only takes bits away.
    if (made && ::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      why_not.emplace_back(ErrnoStatus(errno, folder).message());
      continue;
    }
    const absl::Status own = CheckOwn(folder, places.uid, /*follow=*/false);
    if (own.ok()) return folder;
    why_not.emplace_back(own.message());
  }
  return NoFolder(why_not);
}

std::string DefaultAddressIn(const std::string& folder) {
  return absl::StrCat("unix:", folder, "/", kSocket);
}

absl::StatusOr<std::string> FindDefaultAddress(const RuntimePlaces& places) {
  std::vector<std::string> why_not;
  std::string fallback;
  for (const auto& [folder, made] : Candidates(places, why_not)) {
    const absl::Status own = CheckOwn(folder, places.uid, /*follow=*/false);
    const bool missing = absl::IsNotFound(own);
    if (fallback.empty() && (own.ok() || (missing && made))) fallback = DefaultAddressIn(folder);
    if (!own.ok()) {
      if (!missing) why_not.emplace_back(own.message());
      continue;
    }
    struct stat status;
    const std::string socket = absl::StrCat(folder, "/", kSocket);
    if (::lstat(socket.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
      return DefaultAddressIn(folder);
    }
  }
  if (fallback.empty()) return NoFolder(why_not);
  return fallback;
}

std::vector<std::string> AddressesOf(absl::string_view list) {
  std::vector<std::string> addresses = absl::StrSplit(list, ',', absl::SkipEmpty());
  if (addresses.empty()) addresses.emplace_back(list);
  return addresses;
}

bool IsTcpAddress(absl::string_view address) {
  return !absl::StartsWith(address, "unix:") && !absl::StartsWith(address, "unix-abstract:");
}

std::string HostOf(absl::string_view tcp_address) {
  absl::string_view host = tcp_address.substr(0, tcp_address.rfind(':'));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return std::string(host);
}

bool IsLoopbackHost(absl::string_view host) {
  return host == "localhost" || host == "::1" ||
         (absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == host.npos);
}

std::string TokenLink(const std::string& folder, const std::string& address) {
  return absl::StrCat(folder, "/", address, ".token");
}

absl::StatusOr<std::string> FindToken(const std::string& address, const RuntimePlaces& places) {
  if (const std::vector<std::string> all = AddressesOf(address); all.size() > 1) {
    for (const std::string& one : all) {
      absl::StatusOr<std::string> token = FindToken(one, places);
      if (!token.ok() || !token->empty()) return token;
    }
    return std::string();
  }
  if (!IsTcpAddress(address) || absl::StrContains(address, "/")) return std::string();
  std::vector<std::string> why_not;
  for (const auto& [folder, made] : Candidates(places, why_not)) {
    if (!CheckOwn(folder, places.uid, /*follow=*/false).ok()) continue;
    absl::StatusOr<std::string> token = ReadToken(TokenLink(folder, address));
    if (!absl::IsNotFound(token.status())) return token;
  }
  return std::string();
}

}  // namespace lockstep::coordinator
