// SPDX-License-Identifier: Apache-2.0
// The state region in device memory, without the moments (moments.h).
// Thread-safety: value.
#ifndef LOCKSTEP_ENGINE_CUDA_DEVICE_STATE_H_
#define LOCKSTEP_ENGINE_CUDA_DEVICE_STATE_H_

#include <cstddef>

#include "common/check.h"
#include "engine/engine.h"

namespace lockstep::engine {

struct DeviceState {
  std::byte* base = nullptr;
  StateRange moments;  // of the region; they are not there

  // Bytes that are left out before byte `offset` of the region.
  size_t Gone(size_t offset) const {
    return offset >= moments.end ? moments.end - moments.begin : 0;
  }
  // Where byte `offset` of the region lies. REQUIRES: it is not among the moments.
  std::byte* At(size_t offset) const {
    LS_CHECK(offset < moments.begin || offset >= moments.end) << offset;
    return base + (offset - Gone(offset));
  }
};

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_CUDA_DEVICE_STATE_H_
