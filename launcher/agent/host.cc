// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/host.h"

#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace lockstep::launcher {

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  const std::string full = name;
  return full.substr(0, full.find('.'));
}

int64_t TotalMemory() {
  return int64_t{::sysconf(_SC_PHYS_PAGES)} * int64_t{::sysconf(_SC_PAGESIZE)};
}

std::string RandomId() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) {
    bits = static_cast<uint64_t>(absl::GetCurrentTimeNanos()) ^
           (static_cast<uint64_t>(::getpid()) << 40);
  }
  return absl::StrFormat("%016x", bits);
}

absl::StatusOr<std::string> FindProgram(const std::string& name, const char* override_name) {
  const char* override_path = std::getenv(override_name);
  std::string path;
  if (override_path != nullptr && override_path[0] != '\0') {
    std::error_code ignored;  // there is no current folder: then it is not found
    path = std::filesystem::absolute(override_path, ignored);
  } else {
    char self[PATH_MAX + 1] = {};
    const ssize_t n = ::readlink("/proc/self/exe", self, PATH_MAX);
    const std::string exe(self, n > 0 ? static_cast<size_t>(n) : 0);
    path = absl::StrCat(exe.substr(0, exe.rfind('/') + 1), name);
  }
  if (::access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat("the program '", name, "' is not at ", path,
                     " or cannot be run: install it beside the launcher, or set ", override_name));
  }
  return path;
}

int64_t RaiseFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  return limit.rlim_cur == RLIM_INFINITY ? INT_MAX : static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace lockstep::launcher
