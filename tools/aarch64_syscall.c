// SPDX-License-Identifier: Apache-2.0
// Preloaded by tools/aarch64.sh: qemu-user 7.2 has no set_robust_list, by which the kernel tells a
// worker's end to its peers. Here the worker tells it itself, as it exits.
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <sys/syscall.h>

static struct robust_list_head* list;

static void __attribute__((destructor)) end(void) {
  if (!list) return;
  for (struct robust_list* entry = list->list.next; entry != &list->list; entry = entry->next) {
    unsigned* const word = (unsigned*)((char*)entry + list->futex_offset);
    __atomic_store_n(word, (*word & FUTEX_WAITERS) | FUTEX_OWNER_DIED, __ATOMIC_SEQ_CST);
  }
}

long syscall(long number, ...) {
  va_list more;
  va_start(more, number);
  register long x0 __asm__("x0") = va_arg(more, long);
  register long x1 __asm__("x1") = va_arg(more, long);
  register long x2 __asm__("x2") = va_arg(more, long);
  register long x3 __asm__("x3") = va_arg(more, long);
  register long x4 __asm__("x4") = va_arg(more, long);
  register long x5 __asm__("x5") = va_arg(more, long);
  register long x8 __asm__("x8") = number;
  va_end(more);
  if (number == SYS_set_robust_list) {
    list = (struct robust_list_head*)x0;
    return 0;
  }
  __asm__ volatile("svc 0"
                   : "+r"(x0)
                   : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), "r"(x8)
                   : "memory");
  if (x0 >= 0 || x0 < -4095) return x0;
  errno = (int)-x0;
  return -1;
}
