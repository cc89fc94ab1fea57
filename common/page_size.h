// SPDX-License-Identifier: Apache-2.0
// How this system divides memory. Thread-safety: thread-safe.
#ifndef LOCKSTEP_COMMON_PAGE_SIZE_H_
#define LOCKSTEP_COMMON_PAGE_SIZE_H_

#include <unistd.h>

#include <cstddef>

namespace lockstep {

// Bytes of a page of memory: what mappings begin and end at. 4 KiB mostly, up to 64 KiB on aarch64.
inline size_t PageSize() {
  static const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_PAGE_SIZE_H_
