// SPDX-License-Identifier: Apache-2.0
#include "common/cpu_list.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace lockstep {
namespace {

// More than the kernel is built for anywhere.
constexpr int kMostCpus = 1 << 14;

// A mask with room for kMostCpus.
class CpuMask {
 public:
  CpuMask() : set_(CPU_ALLOC(kMostCpus)) { CPU_ZERO_S(bytes(), set_); }
  ~CpuMask() { CPU_FREE(set_); }
  CpuMask(const CpuMask&) = delete;
  CpuMask& operator=(const CpuMask&) = delete;
  cpu_set_t* set() { return set_; }
  static size_t bytes() { return CPU_ALLOC_SIZE(kMostCpus); }

 private:
  cpu_set_t* const set_;
};

}  // namespace

absl::StatusOr<CpuList> ParseCpuList(std::string_view text) {
  CpuList cpus;
  const absl::string_view stripped =
      absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  for (const absl::string_view part : absl::StrSplit(stripped, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    const bool good = ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &first) &&
                      absl::SimpleAtoi(ends.back(), &last) && first >= 0 && first <= last &&
                      last < kMostCpus;
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", stripped, "' is no list of CPUs, such as 0-3,8"));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string CpuListText(absl::Span<const int> cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (last > i) absl::StrAppend(&text, "-", cpus[last]);
    i = last + 1;
  }
  return text;
}

absl::StatusOr<CpuList> CpusOfThread() {
  CpuMask mask;
  if (::sched_getaffinity(0, CpuMask::bytes(), mask.set()) != 0) {
    return ErrnoStatus(errno, "cannot ask for the CPUs of this process");
  }
  CpuList cpus;
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, CpuMask::bytes(), mask.set())) cpus.push_back(cpu);
  }
  return cpus;
}

absl::Status KeepThreadOn(absl::Span<const int> cpus) {
  CpuMask mask;
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < kMostCpus) CPU_SET_S(cpu, CpuMask::bytes(), mask.set());
  }
  if (::sched_setaffinity(0, CpuMask::bytes(), mask.set()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("cannot keep this process on CPUs ", CpuListText(cpus)));
}

}  // namespace lockstep
