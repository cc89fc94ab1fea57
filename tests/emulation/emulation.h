// SPDX-License-Identifier: Apache-2.0
// Settings and counters of the emulated GPU (include/cuda_runtime.h).
// Thread-safety: one thread at a time.
#ifndef LOCKSTEP_TESTS_EMULATION_EMULATION_H_
#define LOCKSTEP_TESTS_EMULATION_EMULATION_H_

#include <cstddef>
#include <cstdint>

#include "engine/cuda/kernels/tables.h"

namespace emulation {

// The order in which the threads of a block run between two barriers. Kernels without races give
// the same bits in each.
enum class Order { kForward, kBackward };
void SetOrder(Order order);

// What is allocated now, and the most that can be.
size_t AllocatedBytes();
void SetTotalBytes(size_t bytes);
// Kernels launched since the program began.
int64_t Launches();

}  // namespace emulation

namespace lockstep::engine::cuda {
// The module's tables with the emulated GPU below them.
const Tables* EmulatedTables();
}  // namespace lockstep::engine::cuda

#endif  // LOCKSTEP_TESTS_EMULATION_EMULATION_H_
