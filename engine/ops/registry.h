// SPDX-License-Identifier: Apache-2.0
// All ops, as ops/op_list.inc lists them.
// Thread-safety: immutable.
#ifndef LOCKSTEP_ENGINE_OPS_REGISTRY_H_
#define LOCKSTEP_ENGINE_OPS_REGISTRY_H_

#include "absl/types/span.h"
#include "engine/graph/op.h"

namespace lockstep::engine {

// In a fixed order. Lives for ever.
absl::Span<const OpDef* const> AllOps();

}  // namespace lockstep::engine

#endif  // LOCKSTEP_ENGINE_OPS_REGISTRY_H_
