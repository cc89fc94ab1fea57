// SPDX-License-Identifier: Apache-2.0
// NCCL on the host, for tests on machines without a GPU: the functions of nccl.h that our code
// uses, between threads, processes and hosts, over TCP. Reductions add in an order of their own
// (from the last rank), so that who relies on one is found out. Faults can be asked for.
// Thread-safety: thread-safe; one thread at a time for each communicator, as with NCCL.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_H_

#include <functional>

#include "collectives/nccl/nccl_library.h"

namespace lockstep::fake_nccl {

// The library, with all that newer versions have.
NcclLibrary Library();

// How work is put on a stream. Without one (the default) a call is in progress until it is done,
// which NCCL may do too.
using Enqueue = void (*)(void* stream, std::function<void()> work);
void SetEnqueue(Enqueue enqueue);

// The next group of calls of rank `rank`, in any communicator, never ends, as if a peer did not
// come; or fails with `error` instead, where `ends` is set with nothing else to show for it: its
// work is at its end on the GPU's stream.
void HangNext(int rank);
void FailNext(int rank, NcclResult error, bool ends = false);
// The next Shrink or Grow of that rank is refused.
void RefuseNextManagement(int rank);
// Returns whether something that was asked for has not happened yet.
bool FaultsPending();

// What has been called in this process since it began.
struct Counts {
  int inits = 0;
  int shrinks = 0;
  int grows = 0;
  int revokes = 0;
  int aborts = 0;
  int windows = 0;
};
Counts GetCounts();

}  // namespace lockstep::fake_nccl

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_H_
