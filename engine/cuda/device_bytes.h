// SPDX-License-Identifier: Apache-2.0
// What a plan takes of a GPU's memory: Plan::device_bytes and its parts.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_CUDA_DEVICE_BYTES_H_
#define LOCKSTEP_ENGINE_CUDA_DEVICE_BYTES_H_

#include <cstddef>

#include "engine/exec/plan.h"

namespace lockstep::engine {

// Bytes of a field of a batch where it is staged.
inline size_t StagedBytes(size_t bytes) { return (bytes + 255) / 256 * 256; }
// Of the largest batch, with all its fields.
size_t StagedBatchBytes(const CompiledPlan& plan);
// Of the state with what is there of the moments; `moment_bytes` as in Memory.
size_t DeviceStateBytes(const CompiledPlan& plan, size_t moment_bytes);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_DEVICE_BYTES_H_
