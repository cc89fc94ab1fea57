// SPDX-License-Identifier: Apache-2.0
// The faults that are asked of the fake NCCL. Thread-safety: thread-safe.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_FAULTS_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_FAULTS_H_

#include "collectives/nccl/nccl_api.h"

namespace lockstep::fake_nccl {

struct Fault {
  bool hangs = false;
  NcclResult error = kNcclSuccess;
  bool ends = false;  // the GPU's work comes to its end all the same
};

// Returns what the next group of `rank` suffers; it is forgotten then.
Fault TakeFault(int rank);

}  // namespace lockstep::fake_nccl

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_NCCL_FAULTS_H_
