// SPDX-License-Identifier: Apache-2.0
// Text as an open file that lies in memory alone, such as a child takes from its parent.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COMMON_MEMORY_FILE_H_
#define LOCKSTEP_COMMON_MEMORY_FILE_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "common/fd.h"

namespace lockstep {

// Returns a file with `text`, open at its beginning and close-on-exec; /proc shows `name`.
// Errors: as memfd_create(2) and pwrite(2).
absl::StatusOr<UniqueFd> MemoryFile(const char* name, std::string_view text);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_MEMORY_FILE_H_
