// SPDX-License-Identifier: Apache-2.0
#include "common/limits.h"

#include <dirent.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

// Descriptors: two pipes and a log for each worker, two more while one starts; the rest of the
// program.
constexpr int64_t kFilesPerWorker = 3;
constexpr int64_t kFilesOfProgram = 128;
// The largest program's code, libraries and threads' stacks before any of the job's data.
constexpr int64_t kLeastAddressBytes = int64_t{1} << 30;
// Its heap and threads' stacks. gRPC waits for ever for threads that could not be made.
constexpr int64_t kLeastDataBytes = int64_t{256} << 20;
// Logs, journal and the memory that workers share, which counts as files: below this nothing runs.
constexpr int64_t kLeastFileBytes = int64_t{16} << 20;
// Threads, gRPC's among them.
constexpr int64_t kThreadsOfProgram = 16;
constexpr int64_t kThreadsPerWorker = 14;

int64_t ToLimit(rlim_t limit) {
  return limit == RLIM_INFINITY ? Limits::kNone
                                : static_cast<int64_t>(std::min<rlim_t>(limit, Limits::kNone));
}

rlimit Get(int resource) {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  return limit;
}

// Root, and who may change limits, has no limit of processes (fork(2)).
bool MayStartAnyNumber() {
  if (::getuid() == 0) return true;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  constexpr unsigned wanted = (1u << CAP_SYS_RESOURCE) | (1u << CAP_SYS_ADMIN);
  return (data[0].effective & wanted) != 0;
}

// Threads of this user on the machine.
int64_t OwnThreads() {
  int64_t count = 0;
  DIR* const all = ::opendir("/proc");
  if (all == nullptr) return 0;
  while (const dirent* entry = ::readdir(all)) {
    struct stat info {};
    const std::string folder = absl::StrCat("/proc/", entry->d_name);
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    if (::stat(folder.c_str(), &info) != 0 || info.st_uid != ::getuid()) continue;
    std::ifstream status(folder + "/status");
    std::string word;
    while (status >> word) {
      int64_t threads = 0;
      if (word == "Threads:" && status >> threads) count += threads;
    }
  }
  ::closedir(all);
  return count;
}

absl::Status TooLow(const std::string& what, const std::string& flag, int64_t needed,
                    int64_t allowed, const std::string& unit) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " need at least ", needed, " ", unit, " and ", allowed,
                   " are allowed here: raise the limit (ulimit ", flag, ")"));
}

}  // namespace

Limits ProgramLimits() {
  Limits limits;
  limits.open_files = ToLimit(Get(RLIMIT_NOFILE).rlim_max);
  limits.file_bytes = ToLimit(Get(RLIMIT_FSIZE).rlim_cur);
  limits.address_bytes = ToLimit(Get(RLIMIT_AS).rlim_cur);
  limits.data_bytes = ToLimit(Get(RLIMIT_DATA).rlim_cur);
  return limits;
}

Limits CurrentLimits() {
  Limits limits = ProgramLimits();
  const int64_t processes = ToLimit(Get(RLIMIT_NPROC).rlim_cur);
  if (processes != Limits::kNone && !MayStartAnyNumber()) {
    limits.processes = std::max<int64_t>(0, processes - OwnThreads());
  }
  return limits;
}

absl::Status CheckOpenFiles(int workers, int64_t limit) {
  const int64_t needed = workers * kFilesPerWorker + kFilesOfProgram;
  if (needed <= limit) return absl::OkStatus();
  return TooLow(absl::StrCat("the descriptors of ", workers, " worker", workers == 1 ? "" : "s"),
                "-n", needed, limit, "open files");
}

absl::Status CheckProgramLimits(const Limits& limits) {
  if (limits.open_files < kFilesOfProgram) {
    return TooLow("connections, libraries and files", "-n", kFilesOfProgram, limits.open_files,
                  "open files");
  }
  if (limits.address_bytes < kLeastAddressBytes) {
    return TooLow("the programs with their libraries and threads", "-v", kLeastAddressBytes >> 10,
                  limits.address_bytes >> 10, "KiB of addresses each");
  }
  if (limits.data_bytes < kLeastDataBytes) {
    return TooLow("the programs and their threads", "-d", kLeastDataBytes >> 10,
                  limits.data_bytes >> 10, "KiB of data each");
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const Limits& limits, int workers, bool local_run) {
  for (const absl::Status& enough :
       {CheckOpenFiles(workers, limits.open_files), CheckProgramLimits(limits)}) {
    if (!enough.ok()) return enough;
  }
  if (limits.file_bytes < kLeastFileBytes) {
    return TooLow("logs, models and the memory that workers share", "-f", kLeastFileBytes >> 10,
                  limits.file_bytes >> 10, "KiB a file");
  }
  const int64_t threads =
      kThreadsOfProgram * (local_run ? 2 : 1) + int64_t{kThreadsPerWorker} * workers;
  if (limits.processes < threads) {
    return TooLow(absl::StrCat(workers, " worker", workers == 1 ? "" : "s"), "-u", threads,
                  limits.processes, "more processes and threads");
  }
  return absl::OkStatus();
}

std::string ExplainStartFailure(const absl::Status& why) {
  std::string text(why.message());
  if (absl::StartsWith(text, "vfork")) {
    absl::StrAppend(&text, " (the number of processes or the memory is at its limit: ulimit -u)");
  }
  return text;
}

}  // namespace lockstep
