// SPDX-License-Identifier: Apache-2.0
#include "common/memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lockstep {

absl::StatusOr<UniqueFd> MemoryFile(const char* name, std::string_view text) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("memfd_create of ", name));
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = ::pwrite(fd.get(), text.data() + written, text.size() - written,
                               static_cast<off_t>(written));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("writing to ", name, " in memory"));
    written += static_cast<size_t>(n);
  }
  return fd;
}

}  // namespace lockstep
