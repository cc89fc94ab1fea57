// SPDX-License-Identifier: Apache-2.0
#include "engine/ops/registry.h"

#include "engine/ops/ops.h"

namespace lockstep::engine {
namespace {

constexpr const OpDef* kOps[] = {
#define LOCKSTEP_OP(Name) &ops::k##Name,
#define LOCKSTEP_POINTWISE(Name) &ops::k##Name,
#define LOCKSTEP_CPU_OP(Name) &ops::k##Name,
#define LOCKSTEP_PLAIN_OP(Name) &ops::k##Name,
#include "engine/ops/op_list.inc"
};

}  // namespace

absl::Span<const OpDef* const> AllOps() { return kOps; }

}  // namespace lockstep::engine
