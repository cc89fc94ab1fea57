// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/state_region.h"

#include <sys/mman.h>
#include <unistd.h>

#include "common/check.h"

namespace lockstep::engine {

StateRegion::StateRegion(void* base, size_t bytes) : base_(static_cast<std::byte*>(base)) {
#ifndef NDEBUG
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (reinterpret_cast<uintptr_t>(base) % page == 0) protected_bytes_ = bytes / page * page;
  if (protected_bytes_ > 0 && mprotect(base_, protected_bytes_, PROT_READ) != 0) {
    protected_bytes_ = 0;  // memory that cannot be protected works all the same
  }
#else
  static_cast<void>(bytes);
#endif
}

StateRegion::~StateRegion() {
  if (open_ == 0) Open();  // the owner gets its memory back as it was
}

void StateRegion::Open() {
  if (open_++ > 0 || protected_bytes_ == 0) return;
  LS_CHECK_EQ(mprotect(base_, protected_bytes_, PROT_READ | PROT_WRITE), 0);
}

void StateRegion::Close() {
  LS_CHECK_GT(open_, 0);
  if (--open_ > 0 || protected_bytes_ == 0) return;
  LS_CHECK_EQ(mprotect(base_, protected_bytes_, PROT_READ), 0);
}

}  // namespace lockstep::engine
