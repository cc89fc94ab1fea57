// SPDX-License-Identifier: Apache-2.0
// The back end of a device. Plans ask for it here; engine/back_ends.cc knows them all.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_ENGINE_EXEC_BACK_ENDS_H_
#define LOCKSTEP_ENGINE_EXEC_BACK_ENDS_H_

#include <memory>

#include "engine/cpu/kernel.h"
#include "engine/engine.h"
#include "engine/graph/backend.h"

namespace lockstep::engine {

// `targets` are those of a CPU.
std::unique_ptr<const Backend> BackendOf(DeviceKind device, const CpuTargets& targets);

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_EXEC_BACK_ENDS_H_
