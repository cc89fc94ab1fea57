// SPDX-License-Identifier: Apache-2.0
// Closes what a program must not inherit.
// Thread-safety: makes system calls alone, so also for the child of a fork or vfork of a process
// with threads.
#ifndef LOCKSTEP_COMMON_CLOSE_DESCRIPTORS_H_
#define LOCKSTEP_COMMON_CLOSE_DESCRIPTORS_H_

namespace lockstep {

// Closes all descriptors of this process from `first` on, but for `keep` (-1: none). Where the
// kernel has no close_range(2), those that /proc lists; without /proc, those below the limit of
// open files, of which the first 65536.
void CloseDescriptors(int first, int keep = -1);

}  // namespace lockstep

#endif  // LOCKSTEP_COMMON_CLOSE_DESCRIPTORS_H_
