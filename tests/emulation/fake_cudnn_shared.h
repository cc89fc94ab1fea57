// SPDX-License-Identifier: Apache-2.0
// What the parts of the fake cuDNN share. Thread-safety: one thread at a time.
#ifndef LOCKSTEP_TESTS_EMULATION_FAKE_CUDNN_SHARED_H_
#define LOCKSTEP_TESTS_EMULATION_FAKE_CUDNN_SHARED_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "engine/cuda/cudnn_backend_api.h"
#include "tests/emulation/fake_cudnn.h"

namespace lockstep::fake_cudnn {

using engine::cuda::CudnnObject;
using engine::cuda::CudnnStatus;

inline constexpr CudnnStatus kNotInitialized = 1001, kBadParam = 2000, kNotSupported = 3000;
enum Algorithm { kNotDeterministic = 0, kPlain = 1, kTurned = 2, kLarge = 3, kUnsupported = 4 };
inline constexpr size_t kTooLarge = size_t{1} << 40;

extern Switches switches;

// Element `i` of an array of floats, of a type as cudnn.h numbers it.
float Load(const void* data, int type, int64_t i);
void Store(void* data, int type, int64_t i, float x);

// Spoils the workspace and does `work` on the handle's stream.
CudnnStatus Enqueue(CudnnObject handle, void* workspace, const std::function<void()>& work);

}  // namespace lockstep::fake_cudnn

#endif  // LOCKSTEP_TESTS_EMULATION_FAKE_CUDNN_SHARED_H_
