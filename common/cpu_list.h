// SPDX-License-Identifier: Apache-2.0
// Sets of CPUs as the kernel writes them ("0-31,64-95"), and those that this thread may run on.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_CPU_LIST_H_
#define LOCKSTEP_COMMON_CPU_LIST_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep {

// Ascending, each once.
using CpuList = std::vector<int>;

// Of such a text; none of an empty one. Errors: InvalidArgument.
absl::StatusOr<CpuList> ParseCpuList(std::string_view text);
// "0-31,64-95"; empty of none.
std::string CpuListText(absl::Span<const int> cpus);

// The CPUs that the calling thread may run on. Errors: Internal.
absl::StatusOr<CpuList> CpusOfThread();
// Keeps the calling thread, and those that it starts from now on, on `cpus`. Errors: Internal, also
// when none of them may be used.
absl::Status KeepThreadOn(absl::Span<const int> cpus);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_CPU_LIST_H_
