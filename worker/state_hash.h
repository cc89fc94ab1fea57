// SPDX-License-Identifier: Apache-2.0
// A fast hash of memory, to see that a copy of the training state is right. It is no defence
// against intent. Thread-safety: pure function.
#ifndef LOCKSTEP_WORKER_STATE_HASH_H_
#define LOCKSTEP_WORKER_STATE_HASH_H_

#include <cstddef>
#include <cstdint>

namespace lockstep::worker {

// Four lanes of 64 bits, each multiplied and rotated in turn. Any single wrong bit changes it.
uint64_t HashBytes(const void* data, size_t bytes);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_STATE_HASH_H_
