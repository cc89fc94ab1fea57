// SPDX-License-Identifier: Apache-2.0
// The C library's allocation functions of the test's program, counted. operator new calls malloc.
#include "tests/heap_watch.h"

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

std::atomic<int64_t> calls{0};
std::atomic<int64_t> live_bytes{0};

void* Count(void* pointer) {
  if (pointer == nullptr) return nullptr;
  calls.fetch_add(1, std::memory_order_relaxed);
  live_bytes.fetch_add(static_cast<int64_t>(::malloc_usable_size(pointer)),
                       std::memory_order_relaxed);
  return pointer;
}

void Forget(void* pointer) {
  if (pointer == nullptr) return;
  live_bytes.fetch_sub(static_cast<int64_t>(::malloc_usable_size(pointer)),
                       std::memory_order_relaxed);
}

}  // namespace

// glibc's own, under the names that it keeps for programs that replace malloc.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* pointer, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* pointer);

void* malloc(size_t size) noexcept { return Count(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) noexcept { return Count(__libc_calloc(count, size)); }
void* realloc(void* pointer, size_t size) noexcept {
  Forget(pointer);
  return Count(__libc_realloc(pointer, size));
}
void* memalign(size_t alignment, size_t size) noexcept {
  return Count(__libc_memalign(alignment, size));
}
void* aligned_alloc(size_t alignment, size_t size) noexcept { return memalign(alignment, size); }
int posix_memalign(void** pointer, size_t alignment, size_t size) noexcept {
  void* const made = memalign(alignment, size);
  if (made == nullptr) return ENOMEM;
  *pointer = made;
  return 0;
}
void free(void* pointer) noexcept {
  Forget(pointer);
  __libc_free(pointer);
}
}

namespace lockstep {

HeapState HeapNow() { return {calls.load(), live_bytes.load()}; }

}  // namespace lockstep
